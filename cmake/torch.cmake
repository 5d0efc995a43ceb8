# Finds LibTorch, and sets up targets whose sources include its headers.
include(find_torch)

# CMAKE_INSTALL_RPATH_USE_LINK_PATH omits folders inside the source tree, such as .venv.
if(TORCH_ROOT)
  list(APPEND CMAKE_INSTALL_RPATH ${TORCH_ROOT}/lib)
endif()

# LibTorch is built with NDEBUG; without it, its headers lay out objects differently.
set(TORCH_DEFINITIONS $<$<NOT:$<CONFIG:Release,RelWithDebInfo,MinSizeRel>>:NDEBUG>)
# LibTorch does not export the type information of some classes that its headers cast to.
if(PIPEWRIGHT_SANITIZE OR PIPEWRIGHT_FUZZ)
  add_compile_options(-fno-sanitize=vptr)
endif()

# One precompiled header for all of them: it costs a minute and most of a gigabyte.
add_library(pipewright_pch OBJECT ${CMAKE_SOURCE_DIR}/cmake/pch.cc)
target_link_libraries(pipewright_pch PUBLIC pipewright_options nlohmann_json::nlohmann_json ${TORCH_LIBRARIES})
target_compile_definitions(pipewright_pch PRIVATE ${TORCH_DEFINITIONS})
target_precompile_headers(pipewright_pch PRIVATE ${CMAKE_SOURCE_DIR}/cmake/pch.h)

# Sets up a target whose sources include torch.
function(pipewright_uses_torch target)
  target_link_libraries(${target} PUBLIC ${TORCH_LIBRARIES})
  target_compile_definitions(${target} PRIVATE ${TORCH_DEFINITIONS})
  target_precompile_headers(${target} REUSE_FROM pipewright_pch)
  # GCC 12 raises false alarms on std::string's insert and operator+ (bug 105651).
  target_compile_options(${target} PRIVATE -Wno-stringop-overflow -Wno-array-bounds)
endfunction()
