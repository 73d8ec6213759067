# Compiles for ARM on another machine: cmake -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake
# with THALWEG_SYSROOT_PREFIX, a folder into which Debian's arm64 packages were unpacked (scripts/test-arm does all of it).

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES THALWEG_SYSROOT_PREFIX)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# Headers that do not depend on the machine come from this one's packages.
set(CMAKE_FIND_ROOT_PATH ${THALWEG_SYSROOT_PREFIX} /)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(ENV{PKG_CONFIG_LIBDIR} ${THALWEG_SYSROOT_PREFIX}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${THALWEG_SYSROOT_PREFIX})
find_program(THALWEG_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(THALWEG_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${THALWEG_QEMU} -cpu max -L /usr/aarch64-linux-gnu)
endif()
