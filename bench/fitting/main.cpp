// fit: does it fit, and what is the cheapest way to make it? bench/fit builds this and runs it.

#include <cstdio>
#include <new>

#include "answer.h"
#include "harness/chapter.h"

namespace {

int failed(int code, const char* what) {
  std::fprintf(stderr, "fit: %s\n", what);
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace oomlab::fit;
  try {
    const auto questions = parse_questions({argv + 1, argv + argc});
    if (!questions) return std::fputs(help().c_str(), stdout) < 0 || std::fflush(stdout) != 0;
    std::vector<Answer> answers;
    bool any = false;
    SearchProgress progress([](const std::string& line) { std::fprintf(stderr, "fit: %s\n", line.c_str()); });
    for (const Question& question : *questions) any |= answers.emplace_back(answer(question, &progress)).fits();
    const bool json = questions->front().json, one = questions->size() == 1;
    const std::string text = json  ? json_of(*questions, answers)
                             : one ? words_of(questions->front(), answers.front())
                                   : table_of(*questions, answers);
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) return failed(1, "cannot write the answer");
    return any ? 0 : 1;
  } catch (const oomlab::UsageError& error) {
    return failed(64, error.what());
  } catch (const std::invalid_argument& error) {
    return failed(64, error.what());
  } catch (const std::length_error& error) {
    return failed(64, error.what());
  } catch (const std::bad_alloc&) {
    return failed(1, "out of host memory");
  }
}
