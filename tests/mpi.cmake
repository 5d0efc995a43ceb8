# The executor's cases on MPI processes, and what happens when a rank fails.
set(MPI_TEST_ENVIRONMENT OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe)

add_executable(mpi_tests runtime/exec/mpi_main.cc runtime/exec/mpi_abort_test.cc
               runtime/exec/mpi_executor_test.cc runtime/exec/mpi_requests_test.cc)
target_link_libraries(mpi_tests PRIVATE fake_model GTest::gtest)
function(add_mpi_test name ranks)
  add_test(NAME ${name} COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe -n ${ranks}
           $<TARGET_FILE:mpi_tests>)
  # One test at a time: its ranks already share the cores.
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200 PROCESSORS 2 RESOURCE_LOCK mpi
                       ENVIRONMENT "${MPI_TEST_ENVIRONMENT};${ARGN}")
endfunction()
foreach(ranks 1 2 3 5)
  add_mpi_test(mpi_${ranks} ${ranks})
endforeach()
add_mpi_test(mpi_3_tcp 3 OMPI_MCA_btl=tcp,self)
add_mpi_test(mpi_3_one_thread 3 PIPEWRIGHT_MPI_THREAD=0)
add_mpi_test(mpi_3_no_inbox 3 PIPEWRIGHT_MPI_INBOX=0)
# Ranks that do not agree on the inbox.
set(MPI_ALIKE $<TARGET_FILE:mpi_tests> --gtest_filter=-*SendsAtOnceWhatIsRequested)
add_test(NAME mpi_3_one_without_inbox
         COMMAND ${MPIEXEC_EXECUTABLE} --oversubscribe -n 1 env PIPEWRIGHT_MPI_INBOX=0 ${MPI_ALIKE}
                 : -n 2 ${MPI_ALIKE})
set_tests_properties(mpi_3_one_without_inbox PROPERTIES TIMEOUT 1200 PROCESSORS 2 RESOURCE_LOCK mpi
                     ENVIRONMENT "${MPI_TEST_ENVIRONMENT}")

add_executable(mpi_failure_program runtime/exec/mpi_failure_program.cc)
target_link_libraries(mpi_failure_program PRIVATE fake_model)
add_executable(launch_tests runtime/exec/launch.cc runtime/exec/launch_test.cc
               runtime/exec/death_test.cc)
target_link_libraries(launch_tests PRIVATE fake_model GTest::gtest_main)
target_compile_definitions(launch_tests PRIVATE MPIEXEC="${MPIEXEC_EXECUTABLE}"
  MPI_PROGRAM="$<TARGET_FILE:mpi_failure_program>" MPI_TESTS="$<TARGET_FILE:mpi_tests>")
add_dependencies(launch_tests mpi_failure_program mpi_tests)
add_test(NAME launch COMMAND launch_tests --gtest_filter=Launch.*)
add_test(NAME death COMMAND launch_tests --gtest_filter=Death.*)
set_tests_properties(launch PROPERTIES TIMEOUT 1800)
set_tests_properties(death PROPERTIES TIMEOUT 3600)  # with PIPEWRIGHT_LONG at every action
set_tests_properties(launch death PROPERTIES PROCESSORS 2 RESOURCE_LOCK mpi
                     ENVIRONMENT "${MPI_TEST_ENVIRONMENT}")
