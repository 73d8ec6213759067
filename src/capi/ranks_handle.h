#pragma once

#include <memory>

#include "thalweg/ranks.h"
#include "thalweg/thalweg_ranks.h"

// Models share what it holds, and outlive it if they must.
struct thalweg_ranks {
  std::shared_ptr<thalweg::Ranks> connected;
};
