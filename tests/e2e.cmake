# tests/e2e/*_test.py: whole runs, against PyTorch. Visibly skipped if Python has no torch.
set(PIPEWRIGHT_PYTHON "" CACHE FILEPATH "Python with what requirements.txt lists, for tests/e2e")
set(E2E_PYTHON ${PIPEWRIGHT_PYTHON})
if(NOT E2E_PYTHON)
  set(E2E_PYTHON ${CMAKE_SOURCE_DIR}/.venv/bin/python)
  if(NOT EXISTS ${E2E_PYTHON})
    set(E2E_PYTHON ${PYTHON3})
  endif()
endif()

if(TARGET pipewright-run AND EXISTS ${CMAKE_SOURCE_DIR}/cli/commands/compile_command.cc)
  file(GLOB E2E_TESTS CONFIGURE_DEPENDS e2e/*_test.py)
  foreach(path ${E2E_TESTS})
    get_filename_component(name ${path} NAME_WE)
    string(REGEX REPLACE "_test$" "" name ${name})
    add_test(NAME e2e.${name} COMMAND ${E2E_PYTHON} -B ${path} -v)
    set_tests_properties(e2e.${name} PROPERTIES
      ENVIRONMENT "PIPEWRIGHT_BUILD=${CMAKE_BINARY_DIR}"
      SKIP_RETURN_CODE 77 TIMEOUT 3600 LABELS e2e)
  endforeach()
  # Tests that measure how soon processes are gone run alone.
  foreach(name ending failure faults hosts)
    set_tests_properties(e2e.${name} PROPERTIES RUN_SERIAL ON)
  endforeach()
  # With PIPEWRIGHT_LONG: a build of all, 200 kills, and a kill at every write.
  set_tests_properties(e2e.install e2e.faults e2e.resume PROPERTIES TIMEOUT 3600)
  # All of the equality suite on devices, and 200 runs with delays.
  set_tests_properties(e2e.device e2e.device_equality PROPERTIES TIMEOUT 7200)
  if(NOT PIPEWRIGHT_SANITIZE)  # a sanitizer must be loaded first
    add_library(preload MODULE e2e/preload.cc)
    target_link_libraries(preload PRIVATE pipewright_options ${CMAKE_DL_LIBS})
  endif()
endif()

# tests/random_models: random models with random cuts and jobs.
if(TEST e2e.equality)
  set(RANDOM_MODELS ${E2E_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/random_models/random_test.py)
  if(NOT PIPEWRIGHT_SANITIZE)  # a sanitizer must be loaded first
    add_library(many_runs MODULE random_models/many_runs.cc)
    target_link_libraries(many_runs PRIVATE pipewright_options ${CMAKE_DL_LIBS})
    list(APPEND RANDOM_MODELS --many $<TARGET_FILE:many_runs>)
  endif()
  add_test(NAME e2e.random_models COMMAND ${RANDOM_MODELS})
  # With PIPEWRIGHT_LONG: an hour.
  set_tests_properties(e2e.random_models PROPERTIES
    ENVIRONMENT "PIPEWRIGHT_BUILD=${CMAKE_BINARY_DIR}"
    SKIP_RETURN_CODE 77 TIMEOUT 4500 LABELS e2e)
endif()

# tests/python: the package of python/ with the programs of the build folder.
if(TEST e2e.equality)
  add_test(NAME python COMMAND ${E2E_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/python/package_test.py -v)
  set_tests_properties(python PROPERTIES
    ENVIRONMENT "PIPEWRIGHT_BUILD=${CMAKE_BINARY_DIR}"
    SKIP_RETURN_CODE 77 TIMEOUT 3600 LABELS e2e)
endif()
