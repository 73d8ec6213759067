#pragma once

namespace thalweg::app {

// Whether a stream may get bars, colors and other escape sequences: a terminal that is not dumb (TERM unset or "dumb"),
// with NO_COLOR unset or empty. CLICOLOR_FORCE, if set and not 0, stands in for the terminal.
bool takes_escapes(int stream);

// What -q sets: no progress and no timings on stderr, for the rest of the process.
void be_quiet();
bool quiet();

}  // namespace thalweg::app
