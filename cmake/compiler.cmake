# Warnings, sanitizers and ccache, for every target of the project.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache takes what uses precompiled headers only if told that their macros are not looked into.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
endif()

# For a source of C++, and for a CUDA source the same through nvcc to the host compiler.
function(thalweg_host_options)
  list(JOIN ARGN "," joined)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${ARGN}>" "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${joined}>")
endfunction()

thalweg_host_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-qual -Woverloaded-virtual
                     -Wno-missing-field-initializers)
# What nvcc hands to the host compiler keeps neither of these.
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wpedantic;-Wold-style-cast>")
# GCC 12 sees overlaps in std::string's operator+ that are not there.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
if(THALWEG_WERROR)
  thalweg_host_options(-Werror)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()

if(THALWEG_SANITIZE)
  thalweg_host_options(-fsanitize=${THALWEG_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${THALWEG_SANITIZE})
  if(THALWEG_SANITIZE MATCHES "address.*undefined")
    # AddressSanitizer reports what these two would, and they are a fifth of the time of compiling.
    thalweg_host_options(-fno-sanitize=null,object-size)
  endif()
  # Instrumented code confuses GCC's flow analysis: it warns about std::regex.
  add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
endif()

# thalweg_plain_code(<target>): compiles a target without sanitizers. For the oracles and cases, which are test code: in
# float64 and under sanitizers they take most of the time of a run, and the kernels' accesses are checked all the same,
# since their buffers come from the instrumented allocator. They start no threads and synchronize nothing, so that
# ThreadSanitizer misses nothing either.
function(thalweg_plain_code target)
  if(THALWEG_SANITIZE)
    target_compile_options(${target} PRIVATE -fno-sanitize=all -O2)
  endif()
endfunction()

# thalweg_quick_to_compile(<target> <option> <header>...): for programs whose own code computes nothing and takes most of
# the time of a build from nothing: precompiles the large headers that their files share, and optimizes by <option>.
# Under sanitizers not at all.
function(thalweg_quick_to_compile target option)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  if(THALWEG_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endif()
endfunction()
