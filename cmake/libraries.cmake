# One library per folder. USES lists the folders that its files may include:
# docs/internals/architecture.md has the same list with a sentence for each folder, and
# tests/architecture_test.py compares both with the #include lines. A library comes after those that
# it uses, so there are no cycles.

# pipewright_library(FOLDER [TORCH] [BATCH n] [USES folder...] [LINKS target...]): adds the library
# pipewright_FOLDER, with _ for /. TORCH: its sources include LibTorch's headers, and builds without
# LibTorch omit it. BATCH: number of sources that are compiled as one.
set(PIPEWRIGHT_LIBRARIES "")
function(pipewright_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 LIBRARY "TORCH" "BATCH" "USES;LINKS")
  if(LIBRARY_TORCH AND NOT PIPEWRIGHT_TORCH)
    return()
  endif()
  string(REPLACE "/" "_" target pipewright_${folder})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc)
  if(NOT PIPEWRIGHT_MPI)
    list(FILTER sources EXCLUDE REGEX "/mpi_[a-z_]*\\.cc$")
  endif()
  add_library(${target} STATIC ${sources})
  target_link_libraries(${target} PUBLIC $<BUILD_INTERFACE:pipewright_options> ${LIBRARY_LINKS})
  foreach(used ${LIBRARY_USES})
    string(REPLACE "/" "_" used pipewright_${used})
    target_link_libraries(${target} PUBLIC ${used})
  endforeach()
  if(LIBRARY_TORCH)
    pipewright_uses_torch(${target})
  endif()
  if(LIBRARY_BATCH)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON
                          UNITY_BUILD_BATCH_SIZE ${LIBRARY_BATCH})
  endif()
  set(PIPEWRIGHT_LIBRARIES ${PIPEWRIGHT_LIBRARIES} ${target} PARENT_SCOPE)
endfunction()

# No torch, no MPI.
pipewright_library(base BATCH 12 LINKS nlohmann_json::nlohmann_json Threads::Threads)
pipewright_library(base/files BATCH 12 USES base)
pipewright_library(base/process BATCH 12 USES base LINKS Threads::Threads)
pipewright_library(plan BATCH 8 USES base)
pipewright_library(plan/simulate BATCH 8 USES base base/files plan)
pipewright_library(plan/schedules BATCH 8 USES base plan plan/simulate)
pipewright_library(plan/lowering BATCH 8 USES base plan plan/simulate)
pipewright_library(plan/search BATCH 6 USES base plan plan/schedules plan/simulate)
pipewright_library(formats BATCH 8 USES base base/files plan plan/schedules)
pipewright_library(formats/torch BATCH 8 USES base base/files LINKS ZLIB::ZLIB)
pipewright_library(formats/weights BATCH 8 USES base base/files formats formats/torch)
pipewright_library(formats/package BATCH 8 USES base base/files formats formats/weights)
pipewright_library(formats/profile BATCH 8 USES base formats plan plan/simulate)
pipewright_library(formats/data BATCH 8 USES base base/files formats formats/weights)
pipewright_library(plan/partition/problem BATCH 6 USES base formats)
pipewright_library(plan/partition/exact BATCH 6 USES plan/partition/problem)
pipewright_library(plan/partition/refine BATCH 6 USES plan/partition/problem)
pipewright_library(plan/partition/fast BATCH 6
                   USES plan/partition/exact plan/partition/problem plan/partition/refine)
pipewright_library(plan/partition BATCH 6
                   USES base plan/lowering plan/partition/exact plan/partition/fast
                        plan/partition/problem plan/partition/refine plan/schedules plan/simulate)
pipewright_library(plan/partition/pipedream BATCH 6 USES base formats plan/partition/problem)
pipewright_library(plan/partition/io BATCH 6
                   USES base base/files base/process formats formats/profile plan/partition
                        plan/partition/pipedream plan/partition/problem plan/schedules)
pipewright_library(plan/partition/pipedream/codegen BATCH 6 USES base formats plan/partition/io)
pipewright_library(plan/placement/tree BATCH 8 USES base formats/torch formats/weights)
pipewright_library(plan/placement BATCH 8 USES base base/files formats plan/placement/tree)
pipewright_library(plan/run BATCH 4
                   USES base base/files formats plan plan/lowering plan/placement plan/schedules
                        plan/search plan/simulate)
pipewright_library(plan/tune BATCH 4
                   USES base formats formats/profile plan plan/lowering plan/partition
                        plan/partition/io plan/placement plan/run plan/schedules plan/search
                        plan/simulate)
pipewright_library(report
                   USES base base/files formats formats/package formats/profile plan
                        plan/partition/io plan/placement plan/run plan/simulate)
pipewright_library(tune/job BATCH 8
                   USES base base/files formats formats/data formats/weights plan/run
                        plan/schedules plan/tune)
pipewright_library(tune/measure BATCH 8
                   USES base base/files base/process formats formats/data formats/profile
                        formats/weights plan/schedules plan/tune tune/job)
pipewright_library(tune BATCH 8
                   USES base base/files base/process formats formats/package plan plan/schedules
                        plan/simulate plan/tune report tune/job tune/measure)

# No torch: transports, and the executor over opaque handles.
pipewright_library(runtime/exec USES base base/files base/process plan)
pipewright_library(runtime/watch
                   USES base base/files base/process formats formats/weights runtime/exec)
pipewright_library(runtime/transport USES base base/process runtime/exec runtime/watch)
pipewright_library(runtime/disk USES base plan runtime/exec)
pipewright_library(runtime/nccl USES base)
# See ExecutorOptions.
target_compile_definitions(pipewright_runtime_exec
                           PUBLIC $<$<CONFIG:Debug>:PIPEWRIGHT_CHECK_MESSAGES>)
if(PIPEWRIGHT_MPI)
  target_link_libraries(pipewright_runtime_transport PUBLIC MPI::MPI_CXX)
  target_compile_definitions(pipewright_runtime_transport PUBLIC PIPEWRIGHT_MPI OMPI_SKIP_MPICXX)
endif()

# Batches are larger if LibTorch's headers cost more than ours, and smaller if files change often.
pipewright_library(ops TORCH BATCH 4 USES base)
pipewright_library(tensors TORCH BATCH 4 USES base base/files formats/weights plan/placement)
pipewright_library(passes/graph TORCH BATCH 7 USES base ops)
pipewright_library(passes/split TORCH BATCH 7 USES base base/files ops passes/graph)
pipewright_library(passes TORCH BATCH 7 USES base base/files ops passes/graph passes/split)
pipewright_library(compiler/import/export TORCH BATCH 5 USES base formats/torch passes/graph)
pipewright_library(compiler/import/script TORCH BATCH 5
                   USES base base/files formats/torch ops passes passes/graph passes/split)
pipewright_library(compiler/import TORCH BATCH 7
                   USES base base/files compiler/import/export compiler/import/script formats
                        formats/torch formats/weights ops passes/graph)
pipewright_library(compiler/emit TORCH BATCH 7
                   USES base base/files formats formats/package formats/torch formats/weights ops
                        passes/graph passes/split)
pipewright_library(compiler TORCH BATCH 7
                   USES base compiler/emit compiler/import compiler/import/script formats ops
                        passes passes/graph)

pipewright_library(runtime/module TORCH BATCH 3
                   USES base base/files formats formats/package formats/weights ops passes/graph
                        passes/split runtime/exec tensors)
pipewright_library(runtime/trial TORCH BATCH 3
                   USES base formats formats/package formats/weights runtime/module tensors)
pipewright_library(runtime/recorded TORCH BATCH 3
                   USES base base/process formats ops runtime/exec runtime/module runtime/trial)
pipewright_library(runtime/optimizer TORCH BATCH 3
                   USES base formats runtime/exec runtime/module runtime/trial tensors)
pipewright_library(runtime/cpu TORCH BATCH 3 USES base formats runtime/exec)
pipewright_library(runtime/data TORCH BATCH 3
                   USES base formats formats/data formats/weights plan/run runtime/exec
                        runtime/trial tensors)
pipewright_library(runtime/stage TORCH BATCH 3
                   USES base base/files formats formats/weights ops plan plan/placement plan/run
                        runtime/data runtime/disk runtime/exec runtime/module runtime/optimizer
                        runtime/recorded runtime/trial tensors)
pipewright_library(runtime/links TORCH
                   USES base plan runtime/exec runtime/module runtime/nccl tensors)
pipewright_library(runtime TORCH BATCH 3
                   USES base base/files base/process formats formats/package formats/weights ops
                        plan plan/run runtime/cpu runtime/data runtime/exec
                        runtime/links runtime/module runtime/nccl runtime/optimizer
                        runtime/recorded runtime/stage runtime/trial tensors)
pipewright_library(runtime/measure TORCH BATCH 3
                   USES base base/process formats formats/profile formats/weights ops runtime
                        runtime/cpu runtime/data runtime/exec runtime/links runtime/module runtime/optimizer
                        runtime/recorded runtime/stage runtime/transport runtime/trial tensors)
pipewright_library(compiler/measured TORCH
                   USES base compiler formats/weights plan/partition plan/partition/io
                        runtime/measure)
pipewright_library(runtime/checkpoint TORCH BATCH 3
                   USES base base/files formats/weights plan/placement runtime runtime/exec
                        runtime/module runtime/stage tensors)
pipewright_library(runtime/reports TORCH BATCH 5
                   USES base base/files base/process plan/placement runtime runtime/exec
                        runtime/stage)
pipewright_library(runtime/commands TORCH BATCH 3
                   USES base base/files base/process formats formats/package formats/weights plan
                        plan/run plan/schedules plan/simulate runtime runtime/checkpoint
                        runtime/cpu runtime/data runtime/exec runtime/measure runtime/module
                        runtime/recorded runtime/reports runtime/watch tensors)
pipewright_library(check TORCH BATCH 6
                   USES base base/files base/process formats formats/package formats/profile
                        formats/weights plan plan/placement plan/run plan/simulate report runtime
                        runtime/checkpoint runtime/commands runtime/data runtime/exec
                        runtime/module runtime/optimizer runtime/transport runtime/trial
                        runtime/watch tensors)
if(PIPEWRIGHT_TORCH)
  # Kept out of batches: only programs that use EmptyWeights should get its operator fallback.
  set_source_files_properties(tensors/empty_weights.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_compile_definitions(pipewright_runtime_trial PRIVATE PIPEWRIGHT_TORCH)  # check_code.h
endif()

# Adds a group of libraries for others to link: everything without torch and MPI, transports and
# executor, the compiler, or runs.
function(pipewright_group name)
  add_library(pipewright_${name} INTERFACE)
  foreach(folder ${ARGN})
    string(REPLACE "/" "_" target pipewright_${folder})
    target_link_libraries(pipewright_${name} INTERFACE ${target})
  endforeach()
endfunction()
pipewright_group(planning base base/files base/process plan plan/simulate plan/schedules plan/lowering plan/search formats
                 formats/torch formats/weights formats/package formats/profile formats/data
                 plan/partition/problem plan/partition/exact plan/partition/refine
                 plan/partition/fast plan/partition
                 plan/partition/pipedream plan/partition/io plan/partition/pipedream/codegen
                 plan/placement/tree plan/placement plan/run plan/tune report tune)
pipewright_group(execution runtime/exec runtime/watch runtime/transport runtime/disk runtime/nccl)
target_link_libraries(pipewright_execution INTERFACE pipewright_planning)
