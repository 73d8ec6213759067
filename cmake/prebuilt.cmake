# With THALWEG_PREBUILT: links the layers that another build folder has compiled instead of compiling them here. For
# tests of the Python package, which would spend most of their time on what the library's own build has just done.

add_library(thalweg INTERFACE)
set(layers "")
foreach(layer engine grammar convert decode comm checkpoint text io ops cpu cuda metal quant core)
  list(APPEND layers ${THALWEG_PREBUILT}/src/libthalweg_${layer}.a)
endforeach()
target_include_directories(thalweg INTERFACE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(thalweg INTERFACE ${layers} hwy::hwy PkgConfig::PCRE2 PkgConfig::UTF8PROC Threads::Threads
                      ${CMAKE_DL_LIBS})
if(THALWEG_CUDA)
  find_package(CUDAToolkit REQUIRED)
  target_link_libraries(thalweg INTERFACE CUDA::cudart_static)
endif()
