# Compiles declarations.cc against nccl.h of the wheel nvidia-nccl or of the system.
file(GLOB NCCL_HINTS ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/nccl/include)
find_path(NCCL_INCLUDE nccl.h HINTS ${NCCL_HINTS} $ENV{NCCL_HOME}/include)
mark_as_advanced(NCCL_INCLUDE)
if(NCCL_INCLUDE)
  add_test(NAME nccl.declarations
           COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -fsyntax-only -Wall -Werror
                   -I${CMAKE_SOURCE_DIR} -isystem ${CMAKE_CURRENT_LIST_DIR}/cuda
                   -isystem ${NCCL_INCLUDE} ${CMAKE_CURRENT_LIST_DIR}/declarations.cc)
else()
  add_test(NAME nccl.declarations
           COMMAND sh -c "echo 'SKIPPED: no nccl.h: set NCCL_INCLUDE'; exit 77")
endif()
set_tests_properties(nccl.declarations PROPERTIES SKIP_RETURN_CODE 77)
