# Writes the header with version, commit and compiler, at each build, and only if it changes:
# cmake -Dsource=... -Dtemplate=... -Doutput=... -Dversion=... -Dcompiler=... -P build_info.cmake

set(commit "unknown (not built from a git checkout)")
find_program(git git)
# A source tree without .git may lie in somebody else's repository.
if(git AND EXISTS ${source}/.git)
  execute_process(COMMAND ${git} -C ${source} -c safe.directory=* describe --always --abbrev=12 --exclude=* --dirty
                  RESULT_VARIABLE failed OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    string(REPLACE "-dirty" ", with changes" commit "${described}")
  endif()
endif()
configure_file(${template} ${output} @ONLY)
