// fit: does it fit, and what is the cheapest way to make it? bench/fit builds this and runs it.

#include <cstdio>
#include <cstdlib>
#include <new>

#include "answer.h"
#include "list.h"
#include "memory/files.h"
#include "memory/text.h"

namespace {

int failed(int code, const char* what) { return oomlab::complain("fit", what, code); }

using namespace oomlab::fit;

// About the reader's program, this course's, or both.
Answer answer_all(const Question& question, SearchProgress* progress) {
  const bool reader = question.engine == Engine::pytorch;
  const bool whole = !reader || question.all || question.json || !question.training;  // inference is searched at once
  Answer found;
  if (question.of_images()) {
    found.images = answer_images(question);
    return found;
  }
  if (question.pipeline) {
    found.pipeline = answer_pipeline(question);
    return found;
  }
  if (is_server(question.engine)) {
    found.serving = answer_serving(question);
    return found;
  }
  if (whole && course_answers(question) && (!reader || question.training || question.spec.llama()))
    found = answer(question, progress);
  else if (!reader)
    (void)answer(question, progress);  // says why not
  if (reader && question.training) found.reader = answer_reader(question);
  if (reader && !question.training) found.generation = answer_generation(question);
  return found;
}

// What people type to ask: the programs that start this one may say it.
std::string_view command() {
  const char* const said = std::getenv("OOMLAB_COMMAND");
  return said ? said : "bench/fit";
}

std::string text_of(const std::vector<Question>& questions, const std::vector<Answer>& answers) {
  const Question& first = questions.front();
  const bool reader = first.engine != Engine::oomlab, one = questions.size() == 1;
  std::string text;
  for (std::size_t i = 0; reader && i < answers.size(); ++i)
    text += one ? first_words(first, answers[i]) : line_of(questions[i], answers[i]);
  if (reader && !(first.all && course_answers(first))) return text;
  if (reader) text += "\n";
  return text + (one ? words_of(first, answers.front()) : table_of(questions, answers));
}

}  // namespace

int main(int argc, char** argv) {
  oomlab::open_standard_descriptors();
  try {
    const std::vector<std::string> arguments{argv + 1, argv + argc};
    const auto list = list_of(arguments);
    const auto questions = list ? std::nullopt : parse_questions(arguments);
    if (!questions) {
      oomlab::put(stdout, list ? *list : help(command()));
      oomlab::flush_output();
      return 0;
    }
    SearchProgress progress([](const std::string& line) { std::fprintf(stderr, "fit: %s\n", line.c_str()); });
    std::vector<Answer> answers;
    bool any = false, all_as_they_are = true;
    for (const Question& question : *questions) {
      const Answer& found = answers.emplace_back(answer_all(question, &progress));
      any |= fits(found);
      all_as_they_are &= fits_as_it_is(found);
    }
    const bool json = questions->front().json;
    oomlab::put(stdout, json ? json_of(*questions, answers) : text_of(*questions, answers));
    oomlab::flush_output();
    return (questions->front().must_fit ? all_as_they_are : any) ? 0 : 1;
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
