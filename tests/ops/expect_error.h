#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string_view>

#include "cases/case.h"
#include "thalweg/error.h"

namespace thalweg {

// The call throws an Error of this operation about this argument, whose message holds both `expected` and `given`.
template <class Call>
void expect_error(Call&& call, std::string_view operation, std::string_view argument, std::string_view expected,
                  std::string_view given) {
  try {
    call();
  } catch (const Error& error) {
    const std::string_view message = error.what();
    EXPECT_EQ(error.operation(), operation) << message;
    EXPECT_EQ(error.argument(), argument) << message;
    EXPECT_NE(message.find(expected), std::string_view::npos) << message << "\n  lacks: " << expected;
    EXPECT_NE(message.find(given), std::string_view::npos) << message << "\n  lacks: " << given;
    return;
  }
  ADD_FAILURE() << operation << ": no error about " << argument << ", expected " << expected << ", given " << given;
}

// The valid arguments of one case of the table, for tests that break one of them at a time.
template <class Args>
class BadInput {
 public:
  explicit BadInput(std::string_view case_name) {
    for (const cases::Case& test : cases::all_cases()) {
      if (test.operation == Args::kName && test.name == case_name) problem_ = test.make(1);
    }
    if (problem_ == nullptr) ADD_FAILURE() << Args::kName << " has no case " << case_name;
  }

  const Args& args() const { return static_cast<const cases::OperationProblem<Args>&>(*problem_).args; }
  cases::Memory& memory() { return problem_->memory; }

  // spoil(args) breaks them; running them must fail as in expect_error(), with nothing written.
  template <class Spoil>
  void expect(Spoil spoil, std::string_view argument, std::string_view expected, std::string_view given) {
    Args args = this->args();
    const Stream stream = Stream::cpu(2);
    HostWorkspace scratch;
    const Workspace workspace = scratch.reserve(workspace_size(args, stream));
    problem_->memory.reset();
    spoil(args);
    expect_error([&] { run(args, workspace, stream); }, Args::kName, argument, expected, given);
    EXPECT_TRUE(problem_->memory.untouched()) << Args::kName << " wrote something before it failed on " << argument;
  }

  // The workspace: none, too small, misaligned.
  void expect_workspace_errors() {
    const Stream stream = Stream::cpu(2);
    const std::size_t bytes = workspace_size(args(), stream);
    ASSERT_GT(bytes, 0U);
    std::vector<unsigned char> memory(bytes + 2 * kWorkspaceAlignment);
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    unsigned char* aligned =
        memory.data() + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    problem_->memory.reset();
    const auto call = [&](Workspace workspace) {
      return [this, workspace, stream] { run(args(), workspace, stream); };
    };
    expect_error(call({}), Args::kName, "workspace", std::to_string(bytes) + " bytes", "none");
    expect_error(call({aligned, bytes - 1}), Args::kName, "workspace", std::to_string(bytes) + " bytes",
                 std::to_string(bytes - 1) + " bytes");
    expect_error(call({aligned + 4, bytes}), Args::kName, "workspace", "aligned", "not");
    EXPECT_TRUE(problem_->memory.untouched());
  }

 private:
  std::unique_ptr<cases::Problem> problem_;
};

}  // namespace thalweg
