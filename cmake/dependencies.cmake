# Every dependency and its oldest version, those of Debian 12. cmake/packages.txt names the packages that hold them.

# A project that Thalweg is a part of links static layers, and so must see what they need.
set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
find_package(Threads REQUIRED)
find_package(hwy 1.0.3 REQUIRED CONFIG)
if(NOT THALWEG_KERNELS_ONLY)
  find_package(nlohmann_json 3.11 REQUIRED CONFIG)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8>=10.42)
  # Without a version: the file of Debian 12, which holds 2.8, says 2.6.
  pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
  if(THALWEG_STATIC_DEPENDENCIES)
    # Their names stay within what is linked: a process may have loaded other versions.
    foreach(dependency PCRE2:libpcre2-8.a UTF8PROC:libutf8proc.a)
      string(REPLACE ":" ";" dependency ${dependency})
      list(GET dependency 0 prefix)
      list(GET dependency 1 archive)
      find_library(${prefix}_ARCHIVE NAMES ${archive} HINTS ${${prefix}_LIBRARY_DIRS} ${${prefix}_LIBDIR} REQUIRED)
      set_target_properties(PkgConfig::${prefix} PROPERTIES INTERFACE_LINK_LIBRARIES ${${prefix}_ARCHIVE}
                            INTERFACE_LINK_OPTIONS "LINKER:--exclude-libs,${archive}")
    endforeach()
  endif()
endif()
if(THALWEG_APPS OR THALWEG_TESTS)
  find_package(fmt 9.1 REQUIRED CONFIG)
  find_package(CLI11 2.1 REQUIRED CONFIG)
  find_package(boost_headers 1.74 REQUIRED CONFIG)  # Asio and Beast
  # Without it, lines of `thalweg chat` are not edited. Its license is the GPL, which then holds for the program as it is
  # distributed, and not for the library.
  pkg_check_modules(READLINE IMPORTED_TARGET readline>=8.2)
endif()
if(THALWEG_TESTS)
  find_package(GTest 1.12 REQUIRED CONFIG)
endif()
