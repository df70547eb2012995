#pragma once
// What programs say in English, in Chinese: the words stand in docs/data/, once for pages and programs, and are built in.

#include <string>

namespace oomlab {

/// A line, a reason or a claim's size in Chinese, as docs/data/findings.zh.toml or [phrases] of verdicts.zh.toml has it. A
/// phrase's {} stands for what a run fills in, which is put in Chinese, too. In English where no phrase is it.
std::string in_chinese(const std::string& english);

/// A claim in Chinese, by claims.zh.toml. In English where it has none.
struct ClaimWords {
  std::string text, what;  ///< what is said, what is compared
};
ClaimWords claim_in_chinese(const std::string& text, const std::string& what);

}  // namespace oomlab
