#pragma once
// What a chapter writes, checked by readers that share no code with what wrote it.

#include <gtest/gtest.h>

#include "process.h"

namespace oomlab::test {

inline const std::vector<std::string> kFiles = {"--json",     "result.json", "--trace",
                                                "trace.json", "--snapshot",  "snapshot.pickle"};

/// The results are valid, trace.json and snapshot.pickle, too, and both show the peak of the first result.
inline void expect_valid_files(const TemporaryFolder& folder, const std::vector<std::string>& results) {
  std::vector<std::string> words = {source_folder() + "/tests/chapter/check_files.py", source_folder(), folder.path()};
  words.insert(words.end(), results.begin(), results.end());
  const Outcome outcome = run_process("python3", words, "/");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

}  // namespace oomlab::test
