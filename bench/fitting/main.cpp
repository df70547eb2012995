// fit: does it fit, and what is the cheapest way to make it? bench/fit builds this and runs it.

#include <cstdio>
#include <new>

#include "answer.h"
#include "memory/files.h"
#include "memory/text.h"

namespace {

int failed(int code, const char* what) { return oomlab::complain("fit", what, code); }

}  // namespace

int main(int argc, char** argv) {
  using namespace oomlab::fit;
  oomlab::open_standard_descriptors();
  try {
    const auto questions = parse_questions({argv + 1, argv + argc});
    if (!questions) {
      oomlab::put(stdout, help());
      oomlab::flush_output();
      return 0;
    }
    std::vector<Answer> answers;
    bool any = false;
    SearchProgress progress([](const std::string& line) { std::fprintf(stderr, "fit: %s\n", line.c_str()); });
    for (const Question& question : *questions) any |= answers.emplace_back(answer(question, &progress)).fits();
    const bool json = questions->front().json, one = questions->size() == 1;
    const std::string text = json  ? json_of(*questions, answers)
                             : one ? words_of(questions->front(), answers.front())
                                   : table_of(*questions, answers);
    oomlab::put(stdout, text);
    oomlab::flush_output();
    return any ? 0 : 1;
  } catch (const oomlab::UsageError& error) {
    return failed(64, error.what());
  } catch (const std::invalid_argument& error) {
    return failed(64, error.what());
  } catch (const std::length_error& error) {
    return failed(64, error.what());
  } catch (const oomlab::BadFile& error) {
    return failed(64, error.what());
  } catch (const std::bad_alloc&) {
    return failed(1, "out of host memory");
  } catch (const std::exception& error) {
    return failed(1, error.what());
  }
}
