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
    Case now(std::to_string(answers) + " answers to a question of " + std::to_string(prompt) + " tokens, " +
                 std::to_string(blocks) + " blocks",
             bytes_of<float>(blocks * 4 * width) + bytes_of<float>(longest * width) + bytes_of<float>(width), allowed);
    float* out = now.to_fill<float>("out", longest * width);
    const float* token = now.input("token", std::vector<float>(width));
    std::map<int, std::vector<float>> wanted;
    const auto add = [&](int s) {
      const std::vector<float> values = random_numbers(width);
      now.refill(token, values);
      bool done = false;
      now.call([&] { done = append(s, token); });
      if (!done)
        refuse("append() found no free block, and " + std::to_string(blocks) +
                   " are enough where what is the same is stored once.",
               "append() 找不到空闲块；相同的内容只存一份的话，" + std::to_string(blocks) + " 块是够的。");
      wanted[s].insert(wanted[s].end(), values.begin(), values.end());
    };
    const auto check = [&](int s) {
      now.call([&] { sequence_read(s, out); });
      now.equal(("sequence " + std::to_string(s)).c_str(), now.read(out, wanted[s].size()), wanted[s]);
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
        int copy = -1;
        now.call([&] { copy = sequence_fork(question); });
        if (copy < 0)
          refuse("sequence_fork() found no free block: it needs none.", "sequence_fork() 找不到空闲块：它本不需要块。");
        wanted[copy] = wanted[question];
        forks.push_back(copy);
      }
      for (int e = 0; e < extra; ++e)
        for (const int s : forks) add(s);
      for (const int s : forks) check(s);
      check(question);
      for (const int s : forks) now.call([&] { sequence_end(s); });
    }
    check(question);
    now.call([&] {
      sequence_end(question);
      cache_close();
    });
  }
}
