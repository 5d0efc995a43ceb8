# Tensors come and go by the thousand a step: tcmalloc takes less time and less memory than glibc.
# Sanitizers bring their own allocator.
option(PIPEWRIGHT_TCMALLOC "Link the programs with tcmalloc (gperftools) where it is installed" ON)
add_library(pipewright_allocator INTERFACE)
if(PIPEWRIGHT_TCMALLOC AND PIPEWRIGHT_TORCH AND NOT PIPEWRIGHT_SANITIZE AND NOT PIPEWRIGHT_FUZZ)
  find_library(PIPEWRIGHT_TCMALLOC_LIBRARY tcmalloc_minimal)
  if(PIPEWRIGHT_TCMALLOC_LIBRARY)
    # Kept although no symbol asks for it.
    target_link_libraries(pipewright_allocator INTERFACE
      -Wl,--push-state,--no-as-needed ${PIPEWRIGHT_TCMALLOC_LIBRARY} -Wl,--pop-state)
  else()
    message(STATUS "tcmalloc is not installed (Debian: libgoogle-perftools-dev): small models train "
                   "slower without it")
  endif()
endif()

# pipewright: the command line. Commands that need torch are left out of a build without it.
find_package(CLI11 REQUIRED)
file(GLOB COMMAND_SOURCES CONFIGURE_DEPENDS compiler/*_command.cc)
set(TORCH_COMMANDS cli/compile_command.cc cli/profile_command.cc)
if(NOT PIPEWRIGHT_TORCH)
  foreach(source ${TORCH_COMMANDS})
    list(REMOVE_ITEM COMMAND_SOURCES ${CMAKE_SOURCE_DIR}/${source})
  endforeach()
endif()
add_executable(pipewright cli/pipewright_main.cc cli/program.cc cli/usage.cc
  cli/partition_problem.cc cli/simulate_report.cc cli/validate_plan.cc
  cli/zb_auto_plan.cc
               ${COMMAND_SOURCES})
target_link_libraries(pipewright PRIVATE pipewright_plan CLI11::CLI11)
if(TARGET pipewright_compile)
  # What measures packages and compiles their code meets torch and MPI; the commands need neither's
  # headers.
  add_library(pipewright_measure STATIC runtime/module/check_code.cc runtime/measure/measure_package.cc
                                         cli/profile_split.cc)
  target_link_libraries(pipewright_measure PUBLIC pipewright_compile pipewright_runtime
                                                  CLI11::CLI11)
  pipewright_uses_torch(pipewright_measure)
  target_compile_definitions(pipewright_measure PRIVATE PIPEWRIGHT_TORCH)
  target_link_libraries(pipewright PRIVATE pipewright_allocator pipewright_compile
                                           $<LINK_ONLY:pipewright_measure>)
  target_compile_definitions(pipewright PRIVATE PIPEWRIGHT_TORCH)
endif()
install(TARGETS pipewright)

# pipewright-run: what mpirun starts.
if(TARGET pipewright_runtime)
  file(GLOB RUN_SOURCES CONFIGURE_DEPENDS cli/run_main.cc runtime/*_command.cc)
  add_executable(pipewright-run ${RUN_SOURCES} cli/program.cc cli/usage.cc)
  target_link_libraries(pipewright-run PRIVATE pipewright_allocator pipewright_runtime CLI11::CLI11)
  install(TARGETS pipewright-run)
endif()

# Benchmarks that need no torch. Built on request: cmake --build build --target plan_scale.
add_executable(plan_scale EXCLUDE_FROM_ALL bench/plan_scale.cc)
target_link_libraries(plan_scale PRIVATE pipewright_plan)
