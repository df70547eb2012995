#include "plan/interrupt.h"

#include <exception>

namespace oomlab {

void throw_interrupted() {
  if (std::uncaught_exceptions() == 0) throw Interrupted();
}

}  // namespace oomlab
