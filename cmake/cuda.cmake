# The CUDA language, for builds with THALWEG_CUDA=ON.

# Code is compiled ahead of time for each of these; a GPU that none of them fits is reported as unavailable. 80 is the
# code that every GPU from 8.0 on can run, embedded as PTX too; 90a runs on Hopper alone (H100, H200), whose wgmma needs
# the "a". The suffix _sm90 of a file's name stands for 90a, _sm100 for 100a (src/CMakeLists.txt).
set(THALWEG_CUDA_ARCHITECTURES "80;90a" CACHE STRING "Compute capabilities that CUDA code is compiled for")

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "THALWEG_CUDA=ON needs nvcc, and none was found. Put it on PATH, name it in the environment "
                      "variable CUDACXX, or build without it: THALWEG_CUDA=OFF.")
endif()
# Files without an architecture in their names: machine code for each listed one, so that nothing is compiled when a
# program starts.
string(REGEX REPLACE "([0-9]+)a" "\\1-real" CMAKE_CUDA_ARCHITECTURES "${THALWEG_CUDA_ARCHITECTURES}")
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  message(FATAL_ERROR "THALWEG_CUDA=ON needs CUDA 12.0 or later for C++20; ${CMAKE_CUDA_COMPILER} is "
                      "${CMAKE_CUDA_COMPILER_VERSION}.")
endif()
# CMake 3.25 does not know this flag of CUDA 12 and later; newer versions do.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
