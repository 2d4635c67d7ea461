# SPDX-License-Identifier: MIT
# cmake -DNAME= -DPROGRAM= -DCATCH_VERSION= -DLABELS=a,b -DTIMEOUT= -DOUTPUT= -P test_cases.cmake
# Writes the ctest entries of a Catch2 program's test cases, for Catch2 2 and 3. Catch2 2 counts "no such case" as success unless told.
if(CATCH_VERSION VERSION_LESS 3)
  set(list --list-test-names-only)
  set(strict "--warn NoTests")
else()
  set(list --list-tests --verbosity quiet)
  set(strict "--warn UnmatchedTestSpec")
endif()
set(ENV{OMP_NUM_THREADS} 1)
set(ENV{ASAN_OPTIONS} detect_leaks=0)  # here only names are asked for
execute_process(COMMAND ${PROGRAM} ${list} OUTPUT_VARIABLE names ERROR_VARIABLE errors RESULT_VARIABLE status TIMEOUT 120)
string(REPLACE ";" "\\;" names "${names}")
string(REGEX REPLACE "[\r\n]+" ";" names "${names}")
string(REPLACE "," ";" LABELS "${LABELS}")
set(entries "")
set(count 0)
foreach(name IN LISTS names)
  if(name STREQUAL "")
    continue()
  endif()
  if(name MATCHES "^-")  # Catch2 would take it for an option of its own, and end well
    message(FATAL_ERROR "${NAME}: the test case '${name}' begins like an option; name it otherwise")
  endif()
  string(REGEX REPLACE "([][,\\])" "\\\\\\1" spec "${name}")
  string(APPEND entries "add_test([==[${NAME}: ${name}]==] [==[${PROGRAM}]==] [==[${spec}]==] ${strict})\n"
    "set_tests_properties([==[${NAME}: ${name}]==] PROPERTIES LABELS \"${LABELS}\" TIMEOUT ${TIMEOUT} "
    "SKIP_REGULAR_EXPRESSION \"skipped: this test needs\" ENVIRONMENT OMP_NUM_THREADS=1)\n")
  math(EXPR count "${count} + 1")
endforeach()
# Catch2 2 answers with the number of cases, 255 at most.
if(count EQUAL 0 OR NOT (status EQUAL count OR status EQUAL 0 OR status EQUAL 255))
  message(FATAL_ERROR "${PROGRAM} ended with '${status}' and named ${count} test cases:\n${names}\n${errors}")
endif()
file(WRITE ${OUTPUT} "${entries}")
