// --device auto, on devices that processes share: the freest one is taken, and who has the rest is named.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "harness/devices.h"
#include "oomlab_host.h"

namespace oomlab {
namespace {

TEST(Devices, TheFreestIsTakenAndTheOthersHoldersAreNamed) {
  constexpr std::size_t kMiB = std::size_t(1) << 20;
  std::string folder = (std::filesystem::temp_directory_path() / "oomlab.XXXXXX").string();
  ASSERT_TRUE(mkdtemp(folder.data()));
  host::Machine machine;
  machine.devices = 3;
  machine.capacity = 64 * kMiB;
  machine.shared = folder + "/devices";
  const host::Machine initial = host::machine();
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t other = fork();
  if (other == 0) {
    (void)prctl(PR_SET_NAME, "a) trainer (2");  // names may have anything in them
    host::configure(machine);
    void* p = nullptr;
    bool good = true;
    for (const auto& [device, bytes] : {std::pair(0, 48 * kMiB), {1, 8 * kMiB}, {2, 9 * kMiB}})
      good = good && cudaSetDevice(device) == cudaSuccess && cudaMalloc(&p, bytes) == cudaSuccess;
    const ssize_t told = write(ready[1], good ? "y" : "n", 1);
    if (told != 1) _exit(1);
    for (;;) pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  host::configure(machine);
  CommandLine line;
  line.device_auto = true;
  testing::internal::CaptureStderr();
  choose_device(line, 1, nullptr, Progress(false));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(line.config.device, 1);
  for (const std::string& expected : {std::string("device 0: 16.00 MiB free of 64.00 MiB"),
                                      "process " + std::to_string(other) + " (a) trainer (2) holds 48.00 MiB",
                                      std::string("holds 8.00 MiB"), std::string("device 1 has the most free memory")})
    EXPECT_NE(text.find(expected), std::string::npos) << expected << "\n" << text;
  kill(other, SIGKILL);
  EXPECT_EQ(waitpid(other, nullptr, 0), other);
  (void)cudaSetDevice(0);
  host::configure(initial);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
  for (const int end : ready) close(end);
}

}  // namespace
}  // namespace oomlab
