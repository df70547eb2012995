// NCCL of the host runtime between processes, with a peer that is played: what it says, at which moment.
// (tests/processes has real processes, but not under the sanitizers.)

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>

#include "../../common/host/src/nccl_world.h"
#include "contract.h"
#include "oomlab_host.h"

namespace oomlab {
namespace {

using host::Message;
using Kind = Message::Kind;

// This process has number 0 and rank 0 of two; the peer, number 1, has a thread of its own.
class HostNcclMail : public Contract {
 protected:
  void SetUp() override {
    Contract::SetUp();
    ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id_));
    host::Key made;
    std::memcpy(&made, id_.internal, sizeof made);
    deliver_ = host::expect_processes({0, 2, [this](int to, std::string text) {
                                         EXPECT_EQ(1, to);
                                         const std::lock_guard lock(mutex_);
                                         inbox_.push(std::move(text));
                                         changed_.notify_all();
                                       }});
    peer_ = std::thread([this] { play(); });
  }
  void TearDown() override {
    stop();
    (void)host::expect_processes({});
    EXPECT_EQ("nothing", host::describe(host::live()));
    Contract::TearDown();
  }
  // Until the peer has answered all that it was told.
  void stop() {
    if (!peer_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      changed_.notify_all();
    }
    peer_.join();
  }
  void say(const Message& message, std::string_view data = {}) {
    std::string text(sizeof message + data.size(), '\0');
    std::memcpy(text.data(), &message, sizeof message);
    std::copy(data.begin(), data.end(), text.begin() + sizeof message);
    deliver_(1, text);
  }
  Message joined(int rank, std::uint64_t ranks) const {
    Message m{.kind = Kind::joined, .from = rank, .what = {.count = ranks}};
    std::memcpy(&m.key, id_.internal, sizeof m.key);
    return m;
  }
  // A peer that joins when this rank has, and sends back whatever comes.
  void echo(Message m, const std::string& data) {
    if (m.kind == Kind::joined) return say(joined(1, 2));
    if (m.kind != Kind::posted) return;
    std::swap(m.from, m.to);
    if (m.what.call == host::Call::send) m.what.root = m.to;
    say(m, data);
  }
  ncclResult_t join(ncclComm_t& comm) { return ncclCommInitRank(&comm, 2, id_, 0); }

  std::function<void(Message, const std::string&)> peer = [this](const Message& m, const std::string& data) {
    echo(m, data);
  };
  std::vector<Kind> told;  // by this rank; after stop()

 private:
  void play() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return stopping_ || !inbox_.empty(); });
      if (inbox_.empty()) return;
      const std::string text = std::move(inbox_.front());
      inbox_.pop();
      lock.unlock();
      Message m;
      std::memcpy(&m, text.data(), sizeof m);
      told.push_back(m.kind);
      peer(m, text.substr(sizeof m));
      lock.lock();
    }
  }
  ncclUniqueId id_{};
  std::function<void(int, std::string_view)> deliver_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::string> inbox_;
  bool stopping_ = false;
  std::thread peer_;
};

std::string last_error() { return ncclGetLastError(nullptr); }

TEST_F(HostNcclMail, WhatThePeerContributesCounts) {
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclSuccess, join(comm)) << last_error();
  float values[4] = {1, 2, 3, 4}, gathered[8] = {};
  EXPECT_EQ(ncclSuccess, ncclAllReduce(values, values, 4, ncclFloat32, ncclSum, comm, nullptr));
  EXPECT_EQ(8, values[3]) << "its own, and the same from the peer";
  EXPECT_EQ(ncclSuccess, ncclAllGather(values, gathered, 4, ncclFloat32, comm, nullptr));
  EXPECT_EQ(gathered[3], gathered[7]);
  ASSERT_EQ(ncclSuccess, ncclSend(values, 4, ncclFloat32, 1, comm, nullptr));
  EXPECT_EQ(ncclSuccess, ncclRecv(gathered + 4, 4, ncclFloat32, 1, comm, nullptr));
  EXPECT_EQ(values[2], gathered[6]);
  EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm));
  stop();
  EXPECT_EQ((std::vector{Kind::joined, Kind::posted, Kind::posted, Kind::posted, Kind::left}), told);
}

TEST_F(HostNcclMail, APeerThatFailsBeforeItJoinsIsHeard) {
  peer = [&](Message m, const std::string&) {
    m.kind = Kind::failed;
    m.result = ncclSystemError;
    say(m, "rank 1 cannot join");
  };
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclSystemError, join(comm));
  EXPECT_EQ("rank 1 cannot join", last_error()) << "and not that it does not come, after a long wait";
  EXPECT_EQ(ncclRemoteError, join(comm)) << "and whoever comes later hears of it, too";
}

TEST_F(HostNcclMail, APeerThatHasFailedBeforeThisRankCameIsHeard) {
  Message m = joined(1, 2);
  say(m);
  m.kind = Kind::failed;
  say(m, "rank 1 has aborted");
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclRemoteError, join(comm));
  EXPECT_EQ("rank 1 has aborted", last_error());
}

TEST_F(HostNcclMail, APeerThatLeavesEndsACollective) {
  peer = [&](Message m, const std::string& data) {
    if (m.kind == Kind::joined) return echo(m, data);
    m.kind = Kind::left;
    m.from = 1;
    say(m);
  };
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclSuccess, join(comm)) << last_error();
  float value = 1;
  EXPECT_EQ(ncclRemoteError, ncclAllReduce(&value, &value, 1, ncclFloat32, ncclSum, comm, nullptr));
  EXPECT_NE(std::string::npos, last_error().find("rank 1, which has left")) << last_error();
  EXPECT_EQ(ncclSuccess, ncclCommAbort(comm));
  stop();
  EXPECT_EQ(1, std::count(told.begin(), told.end(), Kind::failed)) << "told once, to all";
}

TEST_F(HostNcclMail, AnotherNumberOfRanks) {
  say(joined(1, 3));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclInvalidUsage, join(comm));
  EXPECT_EQ("ncclCommInitRank: 2 ranks for one of them, 3 for another", last_error());
}

TEST_F(HostNcclMail, ARankThatComesTwice) {
  say(joined(0, 2));
  ncclComm_t comm = nullptr;
  EXPECT_EQ(ncclInvalidUsage, join(comm));
  EXPECT_EQ("ncclCommInitRank: rank 0 comes twice", last_error());
}

TEST_F(HostNcclMail, NonsenseIsIgnored) {
  Message m = joined(-1, 2);
  say(m);
  m.from = 7;
  say(m);
  m.kind = Kind::posted;
  m.from = 1, m.to = 9;
  say(m, "12345678");
  m.kind = Kind::left;
  m.key.number += 1000;
  say(m);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclSuccess, join(comm)) << last_error();
  EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm));
}

}  // namespace
}  // namespace oomlab
