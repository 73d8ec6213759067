// What a launcher starts once for each rank: checks the collectives, and exits with 1 where one is wrong.

#include <cstdio>
#include <exception>
#include <vector>

#include "comm/communicator.h"
#include "thalweg/ranks.h"

namespace {

using thalweg::DType;

float value(int rank, std::int64_t i) { return 1.0F / static_cast<float>(rank * 31 + i % 1009 + 1); }

bool sums_are_right(thalweg::comm::Communicator& c, std::int64_t count) {
  std::vector<float> data(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) data[static_cast<std::size_t>(i)] = value(c.rank(), i);
  c.all_reduce(data.data(), DType::kF32, count);
  for (std::int64_t i = 0; i < count; ++i) {
    float sum = value(0, i);
    for (int r = 1; r < c.size(); ++r) sum += value(r, i);
    if (data[static_cast<std::size_t>(i)] != sum) return false;
  }
  return true;
}

bool moves_are_right(thalweg::comm::Communicator& c) {
  const auto size = static_cast<std::size_t>(c.size());
  std::vector<int> out(size), in(size, -1);
  for (std::size_t r = 0; r < size; ++r) out[r] = c.rank() * 100 + static_cast<int>(r);
  c.all_to_all(out.data(), in.data(), sizeof(int));
  for (std::size_t r = 0; r < size; ++r) {
    if (in[r] != static_cast<int>(r) * 100 + c.rank()) return false;
  }
  int last = c.rank();
  c.broadcast(&last, sizeof last, c.size() - 1);
  c.all_gather(&last, in.data(), sizeof last);
  for (const int got : in) {
    if (got != c.size() - 1) return false;
  }
  return true;
}

}  // namespace

int main() {
  try {
    const thalweg::RankOptions options = thalweg::ranks_from_environment();
    if (options.count < 2) {
      std::fprintf(stderr, "no launcher started several ranks\n");
      return 1;
    }
    const auto ranks = thalweg::Ranks::connect(options);
    thalweg::comm::Communicator& c = ranks->communicator();
    bool right = moves_are_right(c);
    for (const std::int64_t count : {1, 1000, 100001, 3000017}) right = right && sums_are_right(c, count);
    c.barrier();
    c.finish();
    return right ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
