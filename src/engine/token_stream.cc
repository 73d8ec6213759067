#include <condition_variable>
#include <iterator>
#include <mutex>
#include <utility>

#include "thalweg/engine.h"

namespace thalweg {
namespace {

void append(Output& output, Output more) {
  output.text += more.text;
  output.tokens.insert(output.tokens.end(), more.tokens.begin(), more.tokens.end());
  std::move(more.logprobs.begin(), more.logprobs.end(), std::back_inserter(output.logprobs));
  output.finish = more.finish;
  output.stop = std::move(more.stop);
  output.error = std::move(more.error);
  output.usage = more.usage;
}

}  // namespace

struct TokenStream::Impl {
  Engine* engine = nullptr;
  RequestId id = 0;
  std::mutex mutex;
  std::condition_variable came;
  bool any = false;
  bool ended = false;
  Output output;  // since the last next()
};

TokenStream::TokenStream(TokenStream&&) noexcept = default;

TokenStream& TokenStream::operator=(TokenStream&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

TokenStream::~TokenStream() { cancel(); }

bool TokenStream::next(Output& output) {
  output = {};
  if (impl_ == nullptr) return false;
  std::unique_lock lock(impl_->mutex);
  impl_->came.wait(lock, [&] { return impl_->any || impl_->ended; });
  if (!impl_->any) return false;
  output = std::exchange(impl_->output, {});
  impl_->any = false;
  return true;
}

void TokenStream::cancel() {
  if (impl_ == nullptr) return;
  {
    const std::lock_guard lock(impl_->mutex);
    if (impl_->ended) return;
  }
  impl_->engine->cancel(impl_->id);
}

TokenStream Engine::stream(Request request) {
  TokenStream stream;
  auto shared = std::make_shared<TokenStream::Impl>();
  shared->engine = this;
  shared->id = submit(std::move(request), [shared](const Output& output) {
    const std::lock_guard lock(shared->mutex);
    append(shared->output, output);
    shared->any = true;
    shared->ended = output.finish.has_value();
    shared->came.notify_all();
  });
  stream.impl_ = std::move(shared);
  return stream;
}

}  // namespace thalweg
