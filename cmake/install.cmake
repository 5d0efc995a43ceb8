# `cmake --install`: programs, libraries, headers, and pipewright::plan and so on for find_package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# pipewright::plan, exec, tensors, ops, compile and runtime are for others; the rest comes with them.
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
install(DIRECTORY plan tensors runtime compiler passes DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/pipewright
        FILES_MATCHING PATTERN "*.h" PATTERN pch.h EXCLUDE)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/pipewrightConfig.cmake.in
  ${CMAKE_BINARY_DIR}/pipewrightConfig.cmake INSTALL_DESTINATION ${PACKAGE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/pipewrightConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/pipewrightConfig.cmake
              ${CMAKE_BINARY_DIR}/pipewrightConfigVersion.cmake
              ${CMAKE_SOURCE_DIR}/cmake/find_torch.cmake DESTINATION ${PACKAGE_DIR})
install(DIRECTORY examples/library examples/data_source
        DESTINATION ${CMAKE_INSTALL_DATADIR}/pipewright/examples)
