# The libraries that meet torch: pipewright_compile (compiler/, passes/) and pipewright_runtime.
include(find_torch)

# CMAKE_INSTALL_RPATH_USE_LINK_PATH leaves out what lies in the source tree, as .venv does.
if(TORCH_ROOT)
  list(APPEND CMAKE_INSTALL_RPATH ${TORCH_ROOT}/lib)
endif()

# LibTorch's headers lay objects out in another way without NDEBUG, and the library is built with it.
set(TORCH_DEFINITIONS $<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:NDEBUG>)
# Nor does it export the type information of some classes that its headers cast to.
if(PIPEWRIGHT_SANITIZE OR PIPEWRIGHT_FUZZ)
  add_compile_options(-fno-sanitize=vptr)
endif()

# One precompiled header for all of them: it costs a minute and most of a gigabyte.
add_library(pipewright_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
target_link_libraries(pipewright_pch PUBLIC pipewright_plan ${TORCH_LIBRARIES})
target_compile_definitions(pipewright_pch PRIVATE ${TORCH_DEFINITIONS})
target_precompile_headers(pipewright_pch PRIVATE ${CMAKE_SOURCE_DIR}/runtime/pch.h)

# A target whose sources include torch.
function(pipewright_uses_torch target)
  target_link_libraries(${target} PUBLIC pipewright_plan ${TORCH_LIBRARIES})
  target_compile_definitions(${target} PRIVATE ${TORCH_DEFINITIONS})
  target_precompile_headers(${target} REUSE_FROM pipewright_pch)
  # GCC 12 raises false alarms on std::string's insert and operator+ (bug 105651).
  target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-array-bounds)
endfunction()

# The operators that packages use. Both libraries refer to ops/random_ops.h, which keeps the
# linker from dropping the registrations.
file(GLOB OP_SOURCES CONFIGURE_DEPENDS passes/ops/*.cc)
add_library(pipewright_ops STATIC ${OP_SOURCES})
pipewright_uses_torch(pipewright_ops)

# Tensors in files, on disk, on no device: for models of torch::nn too. No MPI.
file(GLOB TENSORS_SOURCES CONFIGURE_DEPENDS tensors/*.cc)
add_library(pipewright_tensors STATIC ${TENSORS_SOURCES})
pipewright_uses_torch(pipewright_tensors)
set_target_properties(pipewright_tensors PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
# It registers an operator fallback, which programs get only with EmptyWeights itself.
set_source_files_properties(tensors/empty_weights.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

# Model in, package out. Commands (compiler/*_command.cc) belong to the program.
file(GLOB COMPILE_SOURCES CONFIGURE_DEPENDS compiler/compile.cc compiler/trace.cc compiler/import/*.cc
     compiler/emit/*.cc passes/*.cc)
if(COMPILE_SOURCES)
  add_library(pipewright_compile STATIC ${COMPILE_SOURCES})
  target_link_libraries(pipewright_compile PUBLIC pipewright_ops)
  # Seven files at a time: torch's headers cost more than ours.
  set_target_properties(pipewright_compile PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 7)
  pipewright_uses_torch(pipewright_compile)
endif()

# Package in, training out.
file(GLOB RUNTIME_SOURCES CONFIGURE_DEPENDS runtime/*.cc runtime/profile/*.cc
     runtime/recorded/*.cc)
list(FILTER RUNTIME_SOURCES EXCLUDE REGEX "main\\.cc$|_command\\.cc$")
if(RUNTIME_SOURCES)
  add_library(pipewright_runtime STATIC ${RUNTIME_SOURCES})
  target_link_libraries(pipewright_runtime PUBLIC pipewright_exec pipewright_ops
                                                  pipewright_tensors)
  # Fewer at a time than above: these are the files that change most.
  set_target_properties(pipewright_runtime PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 3)
  pipewright_uses_torch(pipewright_runtime)
endif()
