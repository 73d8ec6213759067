// What helps people who do not know the commands by heart: suggestions, versions, completions, manual pages.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "command_line.h"

namespace thalweg::app {
namespace {

class Help : public CommandLine {
 protected:
  // What a shell prints; its output, or "no SHELL" where it is not installed.
  static std::string shell(const std::string& name, const std::string& script) {
    write_file(at("script"), script);
    const std::string call =
        "command -v " + name + " >" + at("which") + " && " + name + " " + at("script") + " >" + at("answer") + " 2>&1";
    const int status = std::system(call.c_str());
    if (read_file(at("which")).empty()) return "no " + name;
    EXPECT_EQ(status, 0) << read_file(at("answer"));
    return read_file(at("answer"));
  }
  static std::string completion(const std::string& shell_name) {
    const Result result = run({"completion", shell_name});
    EXPECT_EQ(result.code, 0) << result.err;
    write_file(at("completion." + shell_name), result.out);
    return at("completion." + shell_name);
  }
};

TEST_F(Help, MisspelledCommandsNameTheOneThatWasMeant) {
  expect_refusal({"genrate"}, {"did you mean generate?", "--help"});
  expect_refusal({"genrate", "-m", "x", "--help"}, {"did you mean generate?"});
  expect_refusal({"inpsect", "x"}, {"did you mean inspect?"});
  expect_refusal({"perp", "x"}, {"did you mean perplexity?"});
  const Result far = run({"sing"});
  EXPECT_EQ(far.code, 2);
  EXPECT_EQ(far.err.find("did you mean"), std::string::npos) << far.err;
  EXPECT_NE(far.err.find("'sing'"), std::string::npos) << far.err;
  // Hidden commands are no suggestion.
  EXPECT_EQ(run({"mann"}).err.find("did you mean man?"), std::string::npos);
}

TEST_F(Help, MisspelledOptionsNameTheOneThatWasMeant) {
  expect_refusal({"generate", "x", "--tempp", "1", "-p", "a"}, {"--tempp", "did you mean --temp?"});
  expect_refusal({"generate", "--promt=a", "x"}, {"--promt", "did you mean --prompt?"});
  expect_refusal({"verify", "--backened", "cpu"}, {"did you mean --backend?"});
  expect_refusal({"--verison"}, {"did you mean --version?"});
  expect_refusal({"verify", "--xyzzy"}, {"--xyzzy", "thalweg verify --help"});
  expect_refusal({"operations", "everything"}, {"'everything'", "thalweg operations --help"});
}

TEST_F(Help, MessagesAreOneLineWhateverTheWordsHold) {
  expect_refusal({"gen\nrate"}, {"gen\\x0arate"});
  expect_refusal({"generate", "x", "--temp", "1\n2"}, {"1\\x0a2"});
  expect_refusal({"inspect", "a\x1b[31mb\nc"}, {"\\x1b[31m"});
}

TEST_F(Help, WithoutArgumentsThereIsTheShortHelp) {
  const Result result = run({});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, run({"--help"}).out);
  EXPECT_NE(result.out.find("generate"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("  man "), std::string::npos) << result.out;
}

TEST_F(Help, TheVersionTellsWhatRuns) {
  const Result result = run({"--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(result.out.starts_with("thalweg 0.")) << result.out;
  for (const char* row : {"\ncommit  ", "\ncompiler  ", "\ninstruction sets  ", "\nbackend cpu       available",
                          "\nbackend cuda  ", "\nbackend metal  "}) {
    EXPECT_NE(result.out.find(row), std::string::npos) << row << result.out;
  }
  // The same sets as the table of operations has.
  const std::size_t sets = result.out.find("instruction sets") + 18;
  const std::string best = result.out.substr(sets, result.out.find_first_of(" ,", sets) - sets);
  EXPECT_NE(run({"operations"}).out.find("cpu: available " + best), std::string::npos) << best;
}

TEST_F(Help, BashCompletesCommandsOptionsAndValues) {
  const std::string script = "source " + completion("bash") + R"(
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _thalweg; echo "[${COMPREPLY[*]}]"; }
complete_words thalweg ge
complete_words thalweg --vers
complete_words thalweg chat --thi
complete_words thalweg chat --think o
complete_words thalweg generate -n ''
complete_words thalweg quantize a b Q4_K_
complete_words thalweg completion z
complete -p thalweg
cd )" + folder.string() + R"(
complete_words thalweg generate mod
complete_words thalweg generate --model mod
)";
  const std::string answer = shell("bash", script);
  EXPECT_EQ(answer,
            "[generate]\n[--version]\n[--think]\n[on off]\n[]\n[Q4_K_M]\n[zsh]\n"
            "complete -o filenames -F _thalweg thalweg\n[model.gguf]\n[model.gguf]\n");
}

TEST_F(Help, ZshAndFishAcceptTheirScripts) {
  if (shell("zsh", "true") == "no zsh") {
    GTEST_LOG_(INFO) << "zsh is not installed";
  } else {
    EXPECT_EQ(shell("zsh", "autoload -U compinit; compinit -D; source " + completion("zsh") +
                               "; whence -w _thalweg; print $_comps[thalweg]"),
              "_thalweg: function\n_thalweg\n");
  }
  if (shell("fish", "true") == "no fish") {
    GTEST_LOG_(INFO) << "fish is not installed";
  } else {
    const std::string answer = shell("fish", "source " + completion("fish") +
                                                 "\ncomplete -C 'thalweg gene'\ncomplete -C 'thalweg chat --thin'\n"
                                                 "complete -C 'thalweg chat --think of'\n");
    EXPECT_NE(answer.find("generate\tContinue a text\n"), std::string::npos) << answer;
    EXPECT_NE(answer.find("--think\t"), std::string::npos) << answer;
    EXPECT_NE(answer.find("off\t"), std::string::npos) << answer;
  }
}

TEST_F(Help, EveryShellKnowsEveryOption) {
  const std::string help = run({"generate", "--help"}).out;
  const std::string bash = read_file(completion("bash"));
  const std::string zsh = read_file(completion("zsh"));
  const std::string fish = read_file(completion("fish"));
  for (const std::string option : {"temp", "logprobs", "kv-type", "n-predict", "session", "quiet", "ctx-size"}) {
    EXPECT_NE(help.find("--" + option), std::string::npos) << option;
    EXPECT_NE(bash.find(" --" + option), std::string::npos) << option;
    EXPECT_NE(zsh.find(")--" + option + "["), std::string::npos) << option;
    EXPECT_NE(fish.find(" -l " + option + " "), std::string::npos) << option;
  }
  expect_refusal({"completion"}, {"SHELL"});
  expect_refusal({"completion", "tcsh"}, {"SHELL", "bash"});
}

TEST_F(Help, ManualPagesHoldEveryCommandAndOption) {
  ASSERT_EQ(run({"man", at("man")}).code, 0);
  const std::string page = read_file(at("man/thalweg.1"));
  const std::string generate = read_file(at("man/thalweg-generate.1"));
  for (const std::string command : {"generate", "chat", "inspect", "quantize", "perplexity", "eval", "synth", "verify",
                                    "bench", "operations", "completion"}) {
    EXPECT_NE(page.find("\\fB" + command + "\\fR"), std::string::npos) << command;
    EXPECT_TRUE(fs::exists(at("man/thalweg-" + command + ".1"))) << command;
  }
  EXPECT_FALSE(fs::exists(at("man/thalweg-man.1")));
  EXPECT_NE(generate.find("\\fB\\-\\-temp\\fR, \\fB\\-\\-temperature\\fR \\fIFLOAT\\fR"), std::string::npos)
      << generate;
  EXPECT_NE(generate.find("\\fB\\-\\-json\\fR\n"), std::string::npos) << "a flag takes nothing" << generate;
  const std::string warnings =
      shell("groff", "") == "no groff"
          ? ""
          : shell("bash", "for page in " + at("man") + "/*.1; do groff -ww -man -Tutf8 $page >/dev/null; done");
  EXPECT_EQ(warnings, "");
  expect_refusal({"man", at("model.gguf") + "/man"}, {"model.gguf/man/thalweg.1", "Not a directory"});
}

}  // namespace
}  // namespace thalweg::app
