# `make deb`: a Debian package with both programs and the LibTorch that they were built with.
# Not available if LibTorch needs CUDA.
if(NOT TORCH_ROOT OR EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  return()
endif()
set(BUNDLED_TORCH lib/pipewright)  # programs look there first: see pipewright_install
file(GLOB TORCH_FILES ${TORCH_ROOT}/lib/libtorch.so ${TORCH_ROOT}/lib/libtorch_cpu.so
                      ${TORCH_ROOT}/lib/libc10.so ${TORCH_ROOT}/lib/libgomp*.so*)
file(GLOB TORCH_LICENSE ${TORCH_ROOT}/../torch-*.dist-info/licenses/LICENSE ${TORCH_ROOT}/LICENSE)
list(SUBLIST TORCH_LICENSE 0 1 TORCH_LICENSE)  # other versions may have left several
install(FILES ${TORCH_FILES} DESTINATION ${BUNDLED_TORCH} COMPONENT torch EXCLUDE_FROM_ALL)
install(FILES ${TORCH_LICENSE} DESTINATION share/doc/pipewright RENAME LICENSE.torch
        COMPONENT torch EXCLUDE_FROM_ALL)
install(FILES LICENSE DESTINATION share/doc/pipewright RENAME copyright COMPONENT torch EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Pipeline-parallel compiler and runtime on LibTorch and Open MPI")
set(CPACK_COMPONENTS_ALL programs documents torch)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The authors of pipewright <pipewright@localhost>")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_DEPENDS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${TORCH_ROOT}/lib)
include(CPack)
