# `cmake --install`: programs, libraries, headers, and the targets for find_package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# pipewright::plan, exec, tensors, ops, compile and runtime are public; they pull in the rest.
set(EXPORTED_pipewright_planning plan)
set(EXPORTED_pipewright_plan plan_core)
set(EXPORTED_pipewright_execution exec)
set(EXPORTED_pipewright_compiler compile)
set(EXPORTED_pipewright_runtime_commands runtime)
set(EXPORTED_pipewright_runtime session)
set(LIBRARIES ${PIPEWRIGHT_LIBRARIES} pipewright_planning pipewright_execution)
foreach(library ${LIBRARIES})
  string(REPLACE "pipewright_" "" name ${library})
  if(EXPORTED_${library})
    set(name ${EXPORTED_${library}})
  endif()
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
  add_library(pipewright::${name} ALIAS ${library})
  target_include_directories(
    ${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/pipewright>)
  target_compile_features(${library} INTERFACE cxx_std_20)
endforeach()

set(PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pipewright)
install(TARGETS ${LIBRARIES} EXPORT pipewright_targets)
install(EXPORT pipewright_targets NAMESPACE pipewright:: FILE pipewrightTargets.cmake
        DESTINATION ${PACKAGE_DIR})
# The public headers, and everything that they include; all other headers may change.
set(PUBLIC_HEADERS
  base/error.h base/json.h base/text.h base/files/read_file.h
  plan/plan_text.h plan/lowering/lower.h plan/lowering/validate.h plan/partition/solve.h
  plan/placement/device_map.h plan/placement/place.h plan/schedules/schedule.h
  plan/search/zb_auto.h plan/simulate/measure.h plan/simulate/simulate.h
  formats/conf.h formats/graph_text.h formats/job.h formats/manifest.h
  formats/data/source.h formats/profile/profile.h formats/weights/checkpoint.h
  formats/weights/safetensors.h)
if(PIPEWRIGHT_TORCH)
  list(APPEND PUBLIC_HEADERS
    compiler/compile.h compiler/trace.h ops/op_library.h
    runtime/session.h runtime/commands/bench.h runtime/commands/eval.h
    runtime/commands/generate.h runtime/commands/infer.h runtime/commands/train.h
    runtime/module/local_package.h runtime/transport/mpi_transport.h
    runtime/transport/thread_transport.h
    tensors/device_load.h tensors/dtype.h tensors/empty_weights.h tensors/model_file.h
    tensors/offload_folder.h tensors/offloaded_tensor.h tensors/page_memory.h tensors/state_dict.h
    tensors/tensor_file.h)
endif()
set(INSTALLED_HEADERS "")
while(PUBLIC_HEADERS)
  list(POP_FRONT PUBLIC_HEADERS header)
  if(NOT header IN_LIST INSTALLED_HEADERS)
    list(APPEND INSTALLED_HEADERS ${header})
    file(STRINGS ${CMAKE_SOURCE_DIR}/${header} includes REGEX "^#include \"")
    list(TRANSFORM includes REPLACE "^#include \"(.*)\".*" "\\1")
    list(APPEND PUBLIC_HEADERS ${includes})
  endif()
endwhile()
foreach(header ${INSTALLED_HEADERS})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pipewright/${folder})
endforeach()
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/pipewrightConfig.cmake.in
  ${CMAKE_BINARY_DIR}/pipewrightConfig.cmake INSTALL_DESTINATION ${PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/pipewrightConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/pipewrightConfig.cmake
              ${CMAKE_BINARY_DIR}/pipewrightConfigVersion.cmake
              ${CMAKE_SOURCE_DIR}/cmake/find_torch.cmake DESTINATION ${PACKAGE_DIR})
install(FILES docs/man/pipewright.1 docs/man/pipewright-run.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1
        COMPONENT documents)
install(FILES templates/slurm.sbatch templates/hostfile DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright/templates)
install(FILES scripts/mpi_env.sh DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright/scripts)
install(DIRECTORY examples/cpp examples/library examples/data_source
        DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright/examples)
install(FILES examples/one_process.py DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright/examples)
install(FILES examples/torchscript/markers.py
        DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright/examples/torchscript)
