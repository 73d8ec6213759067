# Writes thalweg.spdx.json, the bill of materials (SPDX 2.3) of this build: what was found, in which version, under which
# license, and how it gets into the library, the command line or the Python package. THIRD-PARTY-NOTICES.md has the
# licenses' texts; scripts/package holds the one against the other and validates the file.

set(sbom_packages "")
set(sbom_relations "")

function(sbom_relation from kind to)
  string(APPEND sbom_relations ",\n    {\"spdxElementId\": \"SPDXRef-${from}\", \"relationshipType\": \"${kind}\", "
                               "\"relatedSpdxElement\": \"SPDXRef-${to}\"}")
  set(sbom_relations "${sbom_relations}" PARENT_SCOPE)
endfunction()

# sbom_package(<id> <name> <version> <license> <home> <relation to the library, the program or the extension> <to>)
function(sbom_package id name version license home relation to)
  string(REGEX REPLACE "^https://github.com/" "pkg:github/" purl "${home}")
  if(version)
    string(APPEND purl "@${version}")
    set(version "\"versionInfo\": \"${version}\", ")
  endif()
  string(APPEND sbom_packages ",\n    {\"SPDXID\": \"SPDXRef-${id}\", \"name\": \"${name}\", ${version}"
                              "\"downloadLocation\": \"git+${home}\", \"filesAnalyzed\": false, "
                              "\"licenseDeclared\": \"${license}\", \"licenseConcluded\": \"${license}\", "
                              "\"copyrightText\": \"NOASSERTION\"")
  if(purl MATCHES "^pkg:")
    string(APPEND sbom_packages ", \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", "
                                "\"referenceType\": \"purl\", \"referenceLocator\": \"${purl}\"}]")
  endif()
  string(APPEND sbom_packages "}")
  sbom_relation(${to} ${relation} ${id})
  set(sbom_packages "${sbom_packages}" PARENT_SCOPE)
  set(sbom_relations "${sbom_relations}" PARENT_SCOPE)
endfunction()

# Highway is a shared library in Debian; JSON, CLI11 and Boost are headers, whose code is compiled in.
sbom_package(highway "Highway" "${hwy_VERSION}" "Apache-2.0" https://github.com/google/highway
             DYNAMIC_LINK library)
if(NOT THALWEG_KERNELS_ONLY)
  set(text_libraries DYNAMIC_LINK)
  if(THALWEG_STATIC_DEPENDENCIES)
    set(text_libraries STATIC_LINK)
  endif()
  sbom_package(pcre2 "PCRE2" "${PCRE2_VERSION}" "BSD-3-Clause" https://github.com/PCRE2Project/pcre2 ${text_libraries}
               library)
  sbom_package(utf8proc "utf8proc" "${UTF8PROC_VERSION}" "MIT AND Unicode-DFS-2015"
               https://github.com/JuliaStrings/utf8proc ${text_libraries} library)
  sbom_package(json "JSON for Modern C++" "${nlohmann_json_VERSION}" "MIT" https://github.com/nlohmann/json STATIC_LINK
               library)
endif()
if(THALWEG_APPS)
  sbom_package(fmt "fmt" "${fmt_VERSION}" "MIT" https://github.com/fmtlib/fmt DYNAMIC_LINK program)
  sbom_package(cli11 "CLI11" "${CLI11_VERSION}" "BSD-3-Clause" https://github.com/CLIUtils/CLI11 STATIC_LINK program)
  sbom_package(boost "Boost" "${boost_headers_VERSION}" "BSL-1.0" https://github.com/boostorg/boost STATIC_LINK program)
  if(READLINE_FOUND)
    sbom_package(readline "GNU Readline" "${READLINE_VERSION}" "GPL-3.0-or-later" https://git.savannah.gnu.org/git/readline.git
                 DYNAMIC_LINK program)
  endif()
endif()
if(THALWEG_PYTHON)
  sbom_package(nanobind "nanobind" "${nanobind_VERSION}" "BSD-3-Clause" https://github.com/wjakob/nanobind STATIC_LINK
               extension)
  sbom_package(robin-map "robin-map" "" "MIT" https://github.com/Tessil/robin-map STATIC_LINK extension)
endif()
if(THALWEG_CUDA)
  sbom_package(cudart "NVIDIA CUDA runtime" "${CMAKE_CUDA_COMPILER_VERSION}" "LicenseRef-NVIDIA-CUDA-EULA"
               https://developer.nvidia.com/cuda-toolkit STATIC_LINK library)
  set(sbom_other_licenses ",\n  \"hasExtractedLicensingInfos\": [{\"licenseId\": \"LicenseRef-NVIDIA-CUDA-EULA\", \"name\": \"NVIDIA CUDA EULA\", \"extractedText\": \"https://docs.nvidia.com/cuda/eula/\"}]")
endif()

# sbom_own(<id> <name> <license>): a part of this project that the document describes.
set(sbom_own_packages "")
macro(sbom_own id name license)
  string(APPEND sbom_own_packages ",\n    {\"SPDXID\": \"SPDXRef-${id}\", \"name\": \"${name}\", "
    "\"versionInfo\": \"${PROJECT_VERSION}\", \"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, "
    "\"licenseDeclared\": \"Apache-2.0\", \"licenseConcluded\": \"${license}\", "
    "\"copyrightText\": \"The Thalweg authors\"}")
  sbom_relation(DOCUMENT DESCRIBES ${id})
endmacro()
sbom_own(library "libthalweg" "Apache-2.0")
if(THALWEG_APPS)
  if(READLINE_FOUND)
    sbom_own(program "thalweg" "GPL-3.0-or-later")
  else()
    sbom_own(program "thalweg" "Apache-2.0")
  endif()
  sbom_relation(program STATIC_LINK library)
endif()
if(THALWEG_PYTHON)
  sbom_own(extension "thalweg (Python)" "Apache-2.0")
  sbom_relation(extension STATIC_LINK library)
endif()

# The time is SOURCE_DATE_EPOCH's where that is set; the name follows from what the file says.
string(TIMESTAMP sbom_created "%Y-%m-%dT%H:%M:%SZ" UTC)
string(SHA256 sbom_hash "${sbom_own_packages}${sbom_packages}${sbom_relations}${sbom_created}")
string(SUBSTRING "${sbom_own_packages}${sbom_packages}" 2 -1 sbom_all_packages)
string(SUBSTRING "${sbom_relations}" 2 -1 sbom_all_relations)
set(sbom ${PROJECT_BINARY_DIR}/thalweg.spdx.json)
file(WRITE ${sbom} "{
  \"spdxVersion\": \"SPDX-2.3\",
  \"dataLicense\": \"CC0-1.0\",
  \"SPDXID\": \"SPDXRef-DOCUMENT\",
  \"name\": \"thalweg-${PROJECT_VERSION}\",
  \"documentNamespace\": \"https://spdx.org/spdxdocs/thalweg-${PROJECT_VERSION}-${sbom_hash}\",
  \"creationInfo\": {\"created\": \"${sbom_created}\", \"creators\": [\"Tool: cmake-${CMAKE_VERSION}\", \"Organization: The Thalweg authors\"]}${sbom_other_licenses},
  \"packages\": [
${sbom_all_packages}
  ],
  \"relationships\": [
${sbom_all_relations}
  ]
}
")
if(THALWEG_INSTALL)
  install(FILES ${sbom} DESTINATION ${CMAKE_INSTALL_DATADIR}/thalweg)
endif()
if(SKBUILD_METADATA_DIR)
  install(FILES ${sbom} DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT python)
endif()
