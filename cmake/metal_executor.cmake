# Compiles .metal files as C++ for the executor (src/metal/host). Needs clang++, whatever compiles the rest, for its
# address spaces and its tracing of loads and stores; and Boost.Context for the fibers.

option(THALWEG_METAL_EXECUTOR "Run Metal kernels on the host, where clang++ 14 and Boost.Context are found" ON)

# Why `verify --backend metal` cannot run the kernels; empty where Metal itself or the executor can.
set(THALWEG_METAL_ABSENT "")
set(THALWEG_HAVE_METAL_EXECUTOR OFF)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  if(THALWEG_METAL_EXECUTOR)
    find_program(THALWEG_METAL_CLANG NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18 clang++-19)
    find_package(boost_context CONFIG QUIET)
    if(NOT THALWEG_METAL_CLANG)
      set(missing "clang++")
    elseif(NOT boost_context_FOUND)
      set(missing "Boost.Context")
    else()
      set(THALWEG_HAVE_METAL_EXECUTOR ON)
    endif()
    if(missing)
      string(CONCAT THALWEG_METAL_ABSENT "this build has no Metal executor: CMake found no ${missing} (packages clang and "
                    "libboost-context-dev)")
    endif()
  else()
    set(THALWEG_METAL_ABSENT "this build has no Metal executor: THALWEG_METAL_EXECUTOR is OFF")
  endif()
  if(THALWEG_METAL_ABSENT)
    message(STATUS "Metal kernels are not tested: ${THALWEG_METAL_ABSENT}")
  endif()
endif()

# thalweg_metal_programs(<target> <table> files...): adds the compiled files to the target, and a source that defines
# thalweg::metal::k<table> and kNum<table>.
function(thalweg_metal_programs target table)
  set(host ${PROJECT_SOURCE_DIR}/src/metal/host)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}_programs)
  file(MAKE_DIRECTORY ${out})
  file(GLOB kernel_headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/metal/kernels/*.h)
  set(flags -std=c++14 -I${PROJECT_SOURCE_DIR}/src -I${host}/include -fno-exceptions -fno-rtti -fPIC -Wall -Wextra
            -Wno-unused-parameter -Wno-unused-function -Wno-unused-variable -Wno-unused-const-variable
            -Wno-unneeded-internal-declaration)
  if(THALWEG_WERROR)
    list(APPEND flags -Werror)
  endif()
  set(declarations "")
  set(entries "")
  foreach(file ${ARGN})
    get_filename_component(name ${file} NAME_WE)
    add_custom_command(
      OUTPUT ${out}/${name}.o
      COMMAND ${THALWEG_METAL_CLANG} -E -x c++ -std=c++14 -D__METAL_VERSION__=310 -nostdinc -I${host}/empty
              -I${PROJECT_SOURCE_DIR}/src ${file} -o ${out}/${name}.ii
      COMMAND thalweg_metal_translate ${name} ${out}/${name}.ii ${out}/${name}.cc
      COMMAND ${THALWEG_METAL_CLANG} ${flags} -fsyntax-only -DTHALWEG_CHECK_ADDRESS_SPACES ${out}/${name}.cc
      # Nothing may merge or widen what a thread loads and stores: every access is traced.
      COMMAND ${THALWEG_METAL_CLANG} ${flags} -O2 -g1 -fno-vectorize -fno-slp-vectorize -fno-builtin
              -fno-strict-aliasing -ffp-contract=off -fsanitize-coverage=func,trace-loads,trace-stores -c
              ${out}/${name}.cc -o ${out}/${name}.o
      DEPENDS ${file} ${kernel_headers} thalweg_metal_translate ${host}/include/metal_stdlib ${host}/kernel_runtime.h
              ${host}/compiled_program.h ${host}/address_spaces.h
      COMMENT "Compiling ${name}.metal for the host"
      VERBATIM)
    target_sources(${target} PRIVATE ${out}/${name}.o)
    string(APPEND declarations "extern const thalweg::metal::CompiledProgram program_${name}_table;\n")
    string(APPEND entries "    &program_${name}_table,\n")
  endforeach()
  string(CONCAT text
         "#include <cstddef>\n\n#include \"metal/host/compiled_program.h\"\n\n${declarations}\n"
         "namespace thalweg::metal {\n\n"
         "extern const CompiledProgram* const k${table}[];\nextern const std::size_t kNum${table};\n"
         "const CompiledProgram* const k${table}[] = {\n${entries}};\n"
         "const std::size_t kNum${table} = sizeof(k${table}) / sizeof(k${table}[0]);\n\n"
         "}  // namespace thalweg::metal\n")
  file(CONFIGURE OUTPUT ${out}/${table}.cc CONTENT "${text}" @ONLY)
  target_sources(${target} PRIVATE ${out}/${table}.cc)
endfunction()
