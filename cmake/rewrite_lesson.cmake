# cmake -DINPUT=lesson.cu -DOUTPUT=lesson.cpp [-DWITHOUT_MITIGATION=ON] -P rewrite_lesson.cmake
# Makes C++ of a lesson: kernel<<<grid, block>>>(a, b) becomes kernel ->* Shape(grid, block)(a, b), which
# common/cuda/host/oomlab_lesson.h defines; __shared__ float sums[64] becomes a reference to the block's memory. Lines stay
# where they are, so that messages point at the lesson.
# Refused by the compiler: a kernel whose template arguments are left to be deduced; a ; between <<< and >>>.
# Not recognised: that a launch stands in a string.
# WITHOUT_MITIGATION comments out every line that carries the mark.
file(READ "${INPUT}" text)
if(WITHOUT_MITIGATION)
  string(REGEX REPLACE "([^\n]*// THE MITIGATION)" "// \\1" text "${text}")
endif()
# Between <<< and >>>: anything but ; and three angle brackets in a row.
set(shape "(([^<>;]|<<?[^<>;]|>>?[^<>;])*)")
string(REGEX REPLACE "([A-Za-z0-9_>)])<<<${shape}>>>([ \n]*\\()" "\\1 ->* ::oomlab::lesson::Shape(\\2)\\4" text "${text}")
# At the beginning of a line; arrays only, and one in a declaration. "extern __shared__" stays, and does not compile.
string(REGEX REPLACE "\n( *)__shared__ ([A-Za-z0-9_:]+) ([A-Za-z0-9_]+)((\\[[^];=]+\\])+);"
  "\n\\1auto& \\3 = ::oomlab::lesson::shared<\\2\\4, __LINE__>();" text "${text}")
file(WRITE "${OUTPUT}" "#line 1 \"${INPUT}\"\n${text}")
