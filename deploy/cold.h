/* What compiled code calls only after something went wrong: `make compile` includes this first, so that the compiler
   lays those paths apart from the others. Declared as mypyc's CPy.h does. */
struct _object;
#define COLD __attribute__((cold))
COLD void CPyError_OutOfMemory(void);
COLD void CPy_AddTraceback(const char *, const char *, int, struct _object *);
COLD void CPy_AttributeError(const char *, const char *, const char *, const char *, int, struct _object *);
COLD void CPy_TypeError(const char *, struct _object *);
COLD void CPy_TypeErrorTraceback(const char *, const char *, int, struct _object *, const char *, struct _object *);
COLD static void CPy_DecRef(struct _object *); /* the rare kind: the usual one is a macro */
#undef COLD
