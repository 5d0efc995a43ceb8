# `cmake --install`: programs, libraries, headers, and pipewright::plan and so on for find_package.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(LIBRARIES pipewright_plan)
foreach(library pipewright_exec pipewright_tensors pipewright_ops pipewright_compile
        pipewright_runtime)
  if(TARGET ${library})
    list(APPEND LIBRARIES ${library})
  endif()
endforeach()
foreach(library ${LIBRARIES})
  string(REPLACE "pipewright_" "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
  add_library(pipewright::${name} ALIAS ${library})
  target_include_directories(
    ${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/pipewright>)
  target_compile_features(${library} PUBLIC cxx_std_20)
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
