#include "bench/puzzling/judge.h"
#include <map>

void cache_open(int blocks, int floats);
void cache_close();
int sequence_new();
int sequence_fork(int s);
bool append(int s, const float* token);
void sequence_read(int s, float* to);
void sequence_end(int s);

using namespace oomlab::puzzle;

void oomlab::puzzle::judge_puzzle() {
  for (const int prompt : {size(random_between(40, 60) * 4 + 2, 10), 8, size(random_between(100, 200), 7)}) {
    const int width = random_between(3, 9), answers = 6, extra = 5;
    // The question once, and for each answer a copy of its last block and what it adds.
    const int blocks = (prompt + 3) / 4 + answers * ((prompt % 4 + extra + 3) / 4);
    const int longest = prompt + extra + 1;
    Allowed allowed;
    allowed.no_kernel = allowed.keeps_memory = true;
    allowed.host_bytes = KiB(8);  // for lists of blocks: the tokens themselves are more
    Case now(std::to_string(answers) + " answers to a question of " + std::to_string(prompt) + " tokens, " +
                 std::to_string(blocks) + " blocks",
             bytes_of<float>(blocks * 4 * width) + bytes_of<float>(longest * width) + bytes_of<float>(width), allowed);
    float* out = now.to_fill<float>("out", longest * width);
    const float* token = now.input("token", std::vector<float>(width));
    std::map<int, std::vector<float>> wanted;
    const auto offer = [&](int s) {
      const std::vector<float> values = random_numbers(width);
      now.refill(token, values);
      bool done = false;
      now.call([&] { done = append(s, token); });
      if (done) wanted[s].insert(wanted[s].end(), values.begin(), values.end());
      return done;
    };
    const auto add = [&](int s) {
      if (!offer(s))
        refuse("append() found no free block, and " + std::to_string(blocks) +
                   " are enough where what is the same is stored once.",
               "append() 找不到空闲块；相同的内容只存一份的话，" + std::to_string(blocks) + " 块是够的。");
    };
    const auto fork = [&](int s) {
      int copy = -1;
      now.call([&] { copy = sequence_fork(s); });
      if (copy < 0)
        refuse("sequence_fork() found no free block: it needs none.", "sequence_fork() 找不到空闲块：它本不需要块。");
      wanted[copy] = wanted[s];
      return copy;
    };
    const auto check = [&](int s) {
      now.call([&] { sequence_read(s, out); });
      const std::vector<float> got = now.read(out, wanted[s].size());
      for (std::size_t t = 0; t * width < got.size(); ++t) {
        const auto part = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + long(t * width), all.begin() + long((t + 1) * width));
        };
        for (const auto& [other, tokens] : wanted)
          if (part(got) != part(wanted[s]) && tokens.size() >= (t + 1) * width && part(got) == part(tokens))
            refuse("token " + std::to_string(t) + " of sequence " + std::to_string(s) + " is the one that sequence " +
                       std::to_string(other) +
                       " appended. Was the block copied before it was written, and does `users` count both?",
                   "序列 " + std::to_string(s) + " 的第 " + std::to_string(t) + " 个 token 是序列 " +
                       std::to_string(other) + " 追加的那个。写入之前复制那一块了吗？`users` 把两个序列都算上了吗？");
        now.equal(("sequence[" + std::to_string(s) + "].token[" + std::to_string(t) + "]").c_str(), part(got),
                  part(wanted[s]));
      }
    };
    int question = -1;
    now.call([&] {
      cache_open(blocks, width);
      question = sequence_new();
    });
    for (int t = 0; t < prompt; ++t) add(question);
    for (int round = 0; round < 2; ++round) {  // what was ended in the first round must be free in the second
      std::vector<int> forks;
      for (int a = 0; a < answers; ++a) {
        forks.push_back(fork(question));
      }
      for (int e = 0; e < extra; ++e)
        for (const int s : forks) add(s);
      for (const int s : forks) check(s);
      check(question);
      for (const int s : forks) now.call([&] { sequence_end(s); });
    }
    check(question);
    const auto fill = [&] {  // with one more sequence. How many tokens it got
      int filler = -1;
      now.call([&] { filler = sequence_new(); });
      int tokens = 0;
      while (tokens <= blocks * 4 && offer(filler)) ++tokens;
      return std::pair(filler, tokens);
    };
    if (prompt % 4) {  // with no free block a fork is possible, and writing to what is shared is not
      const int filler = fill().first, copy = fork(question);
      if (offer(copy) || offer(question))
        refuse(
            "append() wrote to a block that two sequences share, while no block was free: it returns false then, and "
            "changes nothing, `users` neither.",
            "两个序列共享的块在没有空闲块时被 append() 写入：此时它应当返回 false，并且什么也不改，`users` 也不改。");
      now.call([&] { sequence_end(filler); });
      for (const int s : {copy, question}) add(s);
      for (const int s : {copy, question}) check(s);
      now.call([&] { sequence_end(copy); });
    }
    now.call([&] { sequence_end(question); });
    const int tokens = fill().second;
    if (tokens != blocks * 4)
      refuse("all sequences have ended, and there is room for " + std::to_string(tokens) + " tokens in " +
                 std::to_string(blocks) + " blocks of 4: `users` counts somebody who is not there.",
             "所有序列都已结束，而 " + std::to_string(blocks) + " 个块（每块 4 个 token）只能放下 " +
                 std::to_string(tokens) + " 个 token：`users` 把已不存在的使用者也算了进去。");
    now.call([&] { cache_close(); });
  }
}
