# Sets TORCH_LIBRARIES and TORCH_INCLUDE_DIRS to those of LibTorch 2.11 or later in
# CMAKE_PREFIX_PATH or Torch_DIR.
#
# LibTorch's own CMake package requires a CUDA toolkit for a CUDA build. Nothing here compiles
# against CUDA, so the libraries of such a build are linked directly.
set(TORCH_ROOT "")
# A wheel is built against the torch of the Python that builds it.
if(SKBUILD)
  execute_process(COMMAND ${PYTHON_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE CMAKE_PREFIX_PATH OUTPUT_STRIP_TRAILING_WHITESPACE
                  COMMAND_ERROR_IS_FATAL ANY)
endif()
string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
foreach(prefix ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${prefixes})
  foreach(root ${prefix} ${prefix}/../.. ${prefix}/../../..)
    if(NOT TORCH_ROOT AND EXISTS ${root}/lib/libtorch.so)
      get_filename_component(TORCH_ROOT ${root} ABSOLUTE)
    endif()
  endforeach()
endforeach()

if(TORCH_ROOT AND EXISTS ${TORCH_ROOT}/lib/libtorch_cuda.so)
  file(STRINGS ${TORCH_ROOT}/include/torch/headeronly/version.h lines REGEX "VERSION_M[A-Z]+ [0-9]+")
  string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" Torch_VERSION "${lines}")
  if(Torch_VERSION VERSION_LESS 2.11)
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${TORCH_ROOT} is older than 2.11")
  endif()
  message(STATUS "Found LibTorch ${Torch_VERSION}, a CUDA build: ${TORCH_ROOT}")
  add_library(torch INTERFACE IMPORTED)
  set(TORCH_INCLUDE_DIRS ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
  target_include_directories(torch INTERFACE ${TORCH_INCLUDE_DIRS})
  # libtorch.so exports nothing itself, but loads the CUDA kernels.
  target_link_libraries(torch INTERFACE
    -Wl,--no-as-needed ${TORCH_ROOT}/lib/libtorch.so -Wl,--as-needed
    ${TORCH_ROOT}/lib/libtorch_cpu.so ${TORCH_ROOT}/lib/libc10.so -Wl,--allow-shlib-undefined)
  set(TORCH_LIBRARIES torch)
else()
  # A LibTorch of shared libraries has no libkineto.a, and its package warns that it is missing.
  if(TORCH_ROOT AND NOT EXISTS ${TORCH_ROOT}/lib/libkineto.a)
    set(kineto_LIBRARY ${TORCH_ROOT}/lib/libc10.so CACHE INTERNAL "in libtorch_cpu.so")
  endif()
  find_package(Torch 2.11 REQUIRED)
  list(REMOVE_DUPLICATES TORCH_LIBRARIES)
endif()
