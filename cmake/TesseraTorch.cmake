# Finds LibTorch and defines tessera_torch (c10, torch_cpu) and, where the wheel has it, tessera_torch_cuda.
# The targets are our own because TorchConfig.cmake checks for a CUDA toolkit even when only the CPU part is used.
# Searched: TESSERA_TORCH_ROOT, Torch_DIR, CMAKE_PREFIX_PATH, then .deps as scripts/setup.sh makes it.

set(TESSERA_TORCH_ROOT "" CACHE PATH "Folder that holds include/torch and lib/libtorch_cpu.so")
file(GLOB _wheels ${PROJECT_SOURCE_DIR}/.deps/*/lib/python3*/site-packages/torch)
set(_hints ${TESSERA_TORCH_ROOT} $ENV{TESSERA_TORCH_ROOT})
if(Torch_DIR)
  list(APPEND _hints ${Torch_DIR}/../../..)
endif()
list(APPEND _hints ${CMAKE_PREFIX_PATH} ${_wheels})
find_library(TESSERA_TORCH_CPU_LIBRARY torch_cpu HINTS ${_hints} PATH_SUFFIXES lib NO_DEFAULT_PATH)
if(NOT TESSERA_TORCH_CPU_LIBRARY)
  message(FATAL_ERROR "LibTorch was not found. Run scripts/setup.sh, or pass "
                      "-DTESSERA_TORCH_ROOT=<folder with include/torch and lib/libtorch_cpu.so>.")
endif()
get_filename_component(_lib ${TESSERA_TORCH_CPU_LIBRARY} DIRECTORY)
get_filename_component(TESSERA_TORCH_FOUND_ROOT ${_lib}/.. ABSOLUTE)
file(STRINGS ${TESSERA_TORCH_FOUND_ROOT}/include/torch/headeronly/version.h _lines
     REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE "[^0-9;]" "" _lines "${_lines}")
string(REPLACE ";" "." TESSERA_TORCH_VERSION "${_lines}")
# CUDA run-time libraries that the wheel's libraries need at link time live in sibling wheels.
file(GLOB _nvidia_libs ${TESSERA_TORCH_FOUND_ROOT}/../nvidia/*/lib)

add_library(tessera_torch INTERFACE IMPORTED GLOBAL)
target_include_directories(tessera_torch SYSTEM INTERFACE
  ${TESSERA_TORCH_FOUND_ROOT}/include ${TESSERA_TORCH_FOUND_ROOT}/include/torch/csrc/api/include)
target_link_directories(tessera_torch INTERFACE ${_lib})
target_link_options(tessera_torch INTERFACE -Wl,-rpath,${_lib})
foreach(_dir ${_nvidia_libs})
  target_link_options(tessera_torch INTERFACE -Wl,-rpath,${_dir} -Wl,-rpath-link,${_dir})
endforeach()
target_link_libraries(tessera_torch INTERFACE c10 torch_cpu)

find_library(TESSERA_TORCH_CUDA_LIBRARY torch_cuda HINTS ${_lib} NO_DEFAULT_PATH)
