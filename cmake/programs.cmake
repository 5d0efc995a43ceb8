# A step allocates thousands of tensors: tcmalloc takes less time and less memory than glibc.
# Sanitizers bring their own allocator.
option(PIPEWRIGHT_TCMALLOC "Link the programs with tcmalloc (gperftools) where it is installed" ON)
add_library(pipewright_allocator INTERFACE)
if(PIPEWRIGHT_TCMALLOC AND PIPEWRIGHT_TORCH AND NOT PIPEWRIGHT_SANITIZE AND NOT PIPEWRIGHT_FUZZ)
  find_library(PIPEWRIGHT_TCMALLOC_LIBRARY tcmalloc_minimal)
  if(PIPEWRIGHT_TCMALLOC_LIBRARY)
    # Linked although no symbol refers to it.
    target_link_libraries(pipewright_allocator INTERFACE
      -Wl,--push-state,--no-as-needed ${PIPEWRIGHT_TCMALLOC_LIBRARY} -Wl,--pop-state)
  else()
    message(STATUS "tcmalloc is not installed (Debian: libgoogle-perftools-dev): small models train "
                   "slower without it")
  endif()
endif()

# In a wheel the programs are inside the Python package, and torch is beside that. A Debian package
# includes LibTorch; other installations find it where it was at build time.
function(pipewright_install program)
  if(SKBUILD)
    set_property(TARGET ${program} PROPERTY INSTALL_RPATH "$ORIGIN/../../torch/lib")
    install(TARGETS ${program} DESTINATION pipewright/bin COMPONENT programs)
  else()
    set_property(TARGET ${program} PROPERTY INSTALL_RPATH "$ORIGIN/../lib/pipewright" ${CMAKE_INSTALL_RPATH})
    install(TARGETS ${program} COMPONENT programs)
  endif()
endfunction()

# pipewright: the command line. Commands that need torch are left out of a build without it.
add_library(pipewright_cli STATIC cli/commands.cc cli/help.cc cli/numbers.cc cli/program.cc
                                  cli/rank_arguments.cc cli/usage.cc)
set_target_properties(pipewright_cli PROPERTIES UNITY_BUILD ON)
target_link_libraries(pipewright_cli PUBLIC pipewright_base_process CLI11::CLI11)
file(GLOB COMMAND_SOURCES CONFIGURE_DEPENDS cli/commands/*.cc)
if(NOT PIPEWRIGHT_TORCH)
  list(FILTER COMMAND_SOURCES EXCLUDE REGEX "/(check|compile|profile|tune)_command\\.cc$")
endif()
# Object libraries, because the precompiled header needs -fPIC and programs are compiled with -fPIE. In
# batches, since CLI11's header takes three seconds.
add_library(pipewright_commands OBJECT cli/pipewright_main.cc ${COMMAND_SOURCES})
set_target_properties(pipewright_commands PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
target_link_libraries(pipewright_commands PUBLIC pipewright_cli pipewright_planning)
add_executable(pipewright)
target_link_libraries(pipewright PRIVATE pipewright_commands)
if(PIPEWRIGHT_TORCH)
  target_link_libraries(pipewright_commands PUBLIC pipewright_compiler pipewright_runtime_transport)
  target_compile_definitions(pipewright_commands PRIVATE PIPEWRIGHT_TORCH)
  pipewright_uses_torch(pipewright_commands)
  # Linked only: the commands that measure a model before splitting it need no headers of torch.
  target_link_libraries(pipewright PRIVATE pipewright_allocator pipewright_compiler_measured
                                           pipewright_check)
endif()
pipewright_install(pipewright)

# pipewright-run: the program that mpirun starts.
if(PIPEWRIGHT_TORCH)
  file(GLOB RUN_SOURCES CONFIGURE_DEPENDS cli/run/*.cc)
  add_library(pipewright_run_commands OBJECT ${RUN_SOURCES})
  set_target_properties(pipewright_run_commands PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 5)
  target_link_libraries(pipewright_run_commands PUBLIC pipewright_cli pipewright_report pipewright_tune
                                                       pipewright_runtime_commands)
  pipewright_uses_torch(pipewright_run_commands)
  add_executable(pipewright-run)
  target_link_libraries(pipewright-run PRIVATE pipewright_allocator pipewright_run_commands)
  pipewright_install(pipewright-run)
endif()
# Benchmarks that need no torch. Built on request: cmake --build build --target plan_scale.
add_executable(plan_scale EXCLUDE_FROM_ALL bench/plan_scale.cc)
target_link_libraries(plan_scale PRIVATE pipewright_planning)
