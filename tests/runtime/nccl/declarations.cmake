# Compiles declarations.cc against NVIDIA's headers: nccl.h of the wheel nvidia-nccl or of the
# system, cuda_runtime_api.h of the wheel nvidia-cuda-runtime or of a toolkit.
file(GLOB NCCL_HINTS ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
file(GLOB CUDA_HINTS ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu*/include
     /usr/local/cuda/include /usr/local/cuda-*/include)
find_path(NCCL_INCLUDE nccl.h HINTS ${NCCL_HINTS} $ENV{NCCL_HOME}/include)
find_path(CUDA_INCLUDE cuda_runtime_api.h HINTS ${CUDA_HINTS} $ENV{CUDA_HOME}/include)
mark_as_advanced(NCCL_INCLUDE CUDA_INCLUDE)
if(NCCL_INCLUDE AND CUDA_INCLUDE)
  add_test(NAME nccl.declarations
           COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -Wall -Werror
                   -I${CMAKE_SOURCE_DIR} -isystem ${NCCL_INCLUDE} -isystem ${CUDA_INCLUDE}
                   ${CMAKE_CURRENT_LIST_DIR}/declarations.cc)
else()
  add_test(NAME nccl.declarations
           COMMAND sh -c "echo 'SKIPPED: no nccl.h and cuda_runtime_api.h: set NCCL_INCLUDE and CUDA_INCLUDE'; exit 77")
endif()
set_tests_properties(nccl.declarations PROPERTIES SKIP_RETURN_CODE 77)
