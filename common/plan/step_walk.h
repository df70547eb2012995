#pragma once
#include "plan/step.h"
