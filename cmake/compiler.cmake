# Warnings, sanitizers and ccache, for every target of the project.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_compile_options(-Wall -Wextra -Wshadow -Wpedantic -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual
                    -Woverloaded-virtual -Wno-missing-field-initializers)
# GCC 12 sees overlaps in std::string's operator+ that are not there.
add_compile_options($<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
if(THALWEG_WERROR)
  add_compile_options(-Werror)
endif()

if(THALWEG_SANITIZE)
  add_compile_options(-fsanitize=${THALWEG_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${THALWEG_SANITIZE})
endif()
