#pragma once
// Claims of a chapter's result, as tests compare them.

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "read_json.h"

namespace oomlab::test {

/// Of each claim about memory: its verdict, and the size that it was judged at.
using Verdicts = std::map<std::string, std::string>;

inline Verdicts verdicts_about_memory(const nlohmann::json& result) {
  Verdicts verdicts;
  for (const nlohmann::json& claim : result["claims"])
    if (claim["about"] == "memory")
      verdicts[claim["claim"]] = claim["verdict_text"].get<std::string>() + " at " + claim["size"].dump();
  return verdicts;
}

/// What a person would not write.
inline void expect_readable(const std::string& out) {
  for (const char* unreadable : {"e+0", "e+1", ": nan", ": inf"})
    EXPECT_EQ(out.find(unreadable), std::string::npos) << unreadable << " in\n" << out;
}

}  // namespace oomlab::test
