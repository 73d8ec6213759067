#include "profile_table.h"

#include <algorithm>
#include <vector>

#include "streams.h"

namespace thalweg::app {

void print_profile(Model& model, std::int64_t tokens, std::int64_t tokens_each, std::int64_t context) {
  const std::vector<OperationTime> times = model.profile(tokens, std::min(tokens, tokens_each), context);
  double total = 0.0;
  for (const OperationTime& time : times) total += time.seconds;
  print("\na step of {} tokens, {} each after {}: {:.1f} us as the sum of its operations\n", tokens,
        std::min(tokens, tokens_each), context, total * 1e6);
  for (const OperationTime& time : times) {
    print("  {:<26} {:<22} {:>5} calls {:>10.1f} us {:>6.1f} %\n", time.operation, time.kernel, time.calls,
          time.seconds * 1e6, 100.0 * time.seconds / total);
  }
  print("\n");
  flush_output();
}

}  // namespace thalweg::app
