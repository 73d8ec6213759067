#pragma once

// For instantiations of templates that a public header declares: the declaration's visibility is not theirs.
#define THALWEG_EXPORTED __attribute__((visibility("default")))
