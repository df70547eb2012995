// For programs built without MPI.

#include "harness/chapter.h"
#include "harness/processes.h"

namespace oomlab {

std::unique_ptr<Processes> join_launcher() {
  throw CannotRunHere("started by mpirun as one of several processes, but this program does not use MPI");
}

}  // namespace oomlab
