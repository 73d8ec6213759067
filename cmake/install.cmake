# The installed tree: one shared library with the C++ and the C interface, the headers, a package for find_package and
# one for pkg-config. What the library itself uses stays inside it.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What users see by name: the C++ namespace and the C functions, nothing of the libraries inside.
set(version_script ${PROJECT_SOURCE_DIR}/cmake/install/thalweg.map)

file(GLOB capi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/*.cc)
add_library(thalweg_shared SHARED ${capi_sources})
add_library(thalweg::thalweg ALIAS thalweg_shared)
foreach(layer core quant cpu cuda metal ops io text checkpoint convert decode grammar engine)
  target_sources(thalweg_shared PRIVATE $<TARGET_OBJECTS:thalweg_${layer}>)
endforeach()
if(THALWEG_CUDA)
  target_sources(thalweg_shared PRIVATE ${THALWEG_CUDA_OBJECTS})
  set_target_properties(thalweg_shared PROPERTIES CUDA_RUNTIME_LIBRARY Static)
endif()
target_include_directories(thalweg_shared PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                                 $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                          PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(thalweg_shared PRIVATE Threads::Threads hwy::hwy PkgConfig::PCRE2 PkgConfig::UTF8PROC)
target_compile_features(thalweg_shared INTERFACE cxx_std_20)
set_target_properties(thalweg_shared PROPERTIES OUTPUT_NAME thalweg EXPORT_NAME thalweg VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(UNIX AND NOT APPLE)
  target_link_options(thalweg_shared PRIVATE -Wl,--version-script=${version_script})
  set_target_properties(thalweg_shared PROPERTIES LINK_DEPENDS ${version_script})
endif()

set(THALWEG_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/thalweg)
install(TARGETS thalweg_shared EXPORT thalwegTargets)
install(DIRECTORY include/thalweg DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT thalwegTargets NAMESPACE thalweg:: DESTINATION ${THALWEG_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/thalwegConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(cmake/install/thalwegConfig.cmake.in thalwegConfig.cmake @ONLY)
file(RELATIVE_PATH THALWEG_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/install/thalweg.pc.in thalweg.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/thalwegConfig.cmake ${PROJECT_BINARY_DIR}/thalwegConfigVersion.cmake
        DESTINATION ${THALWEG_PACKAGE_DIR})
install(FILES ${PROJECT_BINARY_DIR}/thalweg.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(THALWEG_APPS)
  install(TARGETS thalweg_cli)
endif()
