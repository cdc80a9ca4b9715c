# ho_script_test(NAME SCRIPT LABEL kind ARGUMENTS word ... [TIMEOUT seconds] [TIME]): a Python script that is one CTest test.
# TIME: its bounds are of real time (support/patience.py); it is a second test besides, as in ho_test_program.
# A script that ends with 77 is skipped. So is one whose unittest left out a case, which unittest itself counts as success;
# support/needs.py prints the reason of either.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
function(ho_script_test name script)
  cmake_parse_arguments(arg "TIME" "LABEL;TIMEOUT" "ARGUMENTS" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set(command Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${script} ${arg_ARGUMENTS})
  set(properties TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77 SKIP_REGULAR_EXPRESSION "OK [(][a-z0-9=, ]*skipped=")
  add_test(NAME ${name} COMMAND ${command})
  set_tests_properties(${name} PROPERTIES LABELS ${arg_LABEL} ${properties})
  if(arg_LABEL STREQUAL "perf")
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
  if(arg_TIME)
    add_test(NAME "${name}, in real time" COMMAND ${command})
    set_tests_properties("${name}, in real time" PROPERTIES LABELS time ${properties} ENVIRONMENT HO_REAL_TIME=1
      RUN_SERIAL TRUE)
  endif()
endfunction()
