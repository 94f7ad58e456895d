// As much of Foundation as Metal hosts use: strings, numbers, arrays, dictionaries, errors, URLs. Compiled without ARC.
#import <Foundation/Foundation.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <string>
#include <vector>

extern "C" {
id class_createInstance(Class, size_t);
id object_dispose(id);
id objc_retain(id);
void objc_release(id);
id objc_autorelease(id);
const char* object_getClassName(id);
bool objc_opt_isKindOfClass(id, Class);
bool objc_opt_respondsToSelector(id, SEL);
Class objc_opt_class(id);
void emu_objc_die(const char*, ...);
}

@interface NSConstantString : NSString {
 @public
  int flags;
  const char* s;
  long n;
}
@end

@interface HeapString : NSString {
 @public
  std::string* str;
}
@end

static NSString* make_string(const std::string& s) {
  HeapString* m = [HeapString alloc];
  m->str = new std::string(s);
  return objc_autorelease(m);
}
extern "C" NSString* emu_string(const char* s) { return make_string(s); }

static std::string format(NSString* f, va_list a) {
  std::string o;
  const char* p = f.UTF8String;
  while (*p) {
    if (*p != '%') {
      o += *p++;
      continue;
    }
    std::string sp = "%";
    p++;
    while (*p && strchr("0123456789.-+ #lzhqt", *p)) sp += *p++;
    char c = *p++;
    char b[512];
    if (c == '%') {
      o += '%';
      continue;
    }
    if (c == '@') {
      id x = va_arg(a, id);
      o += x ? [[x description] UTF8String] : "(null)";
      continue;
    }
    sp += c;
    if (c == 's')
      snprintf(b, sizeof b, sp.c_str(), va_arg(a, char*));
    else if (strchr("fgeFGE", c))
      snprintf(b, sizeof b, sp.c_str(), va_arg(a, double));
    else if (c == 'p')
      snprintf(b, sizeof b, "%p", va_arg(a, void*));
    else if (sp.find_first_of("lzqt") != std::string::npos)
      snprintf(b, sizeof b, sp.c_str(), va_arg(a, long));
    else
      snprintf(b, sizeof b, sp.c_str(), va_arg(a, int));
    o += b;
  }
  return o;
}

@implementation NSObject
+ (instancetype)alloc { return class_createInstance(self, 0); }
+ (instancetype)new { return [[self alloc] init]; }
- (instancetype)init { return self; }
- (void)dealloc { object_dispose(self); }
+ (Class)class { return self; }
- (Class)class { return objc_opt_class(self); }
- (BOOL)isEqual:(id)o { return self == o; }
- (NSUInteger)hash { return (NSUInteger)self; }
- (BOOL)isKindOfClass:(Class)c { return objc_opt_isKindOfClass(self, c); }
- (BOOL)respondsToSelector:(SEL)s { return objc_opt_respondsToSelector(self, s); }
- (NSString*)description { return [NSString stringWithFormat:@"<%s: %p>", object_getClassName(self), (void*)self]; }
- (instancetype)retain { return objc_retain(self); }
- (void)release { objc_release(self); }
- (instancetype)autorelease { return objc_autorelease(self); }
@end

@implementation NSString
+ (instancetype)stringWithUTF8String:(const char*)s { return (id)make_string(s); }
+ (instancetype)stringWithFormat:(NSString*)f, ... {
  va_list a;
  va_start(a, f);
  std::string s = format(f, a);
  va_end(a);
  return (id)make_string(s);
}
- (instancetype)initWithUTF8String:(const char*)s {
  objc_release(self);
  HeapString* m = [HeapString alloc];
  m->str = new std::string(s);
  return (id)m;
}
- (instancetype)initWithBytes:(const void*)b length:(NSUInteger)n encoding:(NSUInteger)e {
  if (e != NSUTF8StringEncoding) emu_objc_die("encoding");
  objc_release(self);
  HeapString* m = [HeapString alloc];
  m->str = new std::string((const char*)b, n);
  return (id)m;
}
- (const char*)UTF8String {
  emu_objc_die("abstract NSString");
  return 0;
}
- (NSUInteger)length { return strlen(self.UTF8String); }
- (NSUInteger)lengthOfBytesUsingEncoding:(NSUInteger)e { return strlen(self.UTF8String); }
- (BOOL)isEqualToString:(NSString*)o { return o && !strcmp(self.UTF8String, o.UTF8String); }
- (id)copy { return objc_retain(self); }
- (NSString*)description { return self; }
@end

@implementation NSConstantString
- (const char*)UTF8String {
  if (flags != 0x7c8) emu_objc_die("only ASCII string constants (flags %x)", flags);
  return s;
}
@end

@implementation HeapString
- (const char*)UTF8String { return str->c_str(); }
- (void)dealloc {
  delete str;
  [super dealloc];
}
@end

extern "C" id _Block_copy(id);

@interface NSBlock : NSObject
@end

@implementation NSBlock
- (id)copy { return _Block_copy(self); }
@end

@interface NSNumber () {
 @public
  double d;
}
@end

@implementation NSNumber
static NSNumber* make_number(double v) {
  NSNumber* n = [NSNumber alloc];
  n->d = v;
  return objc_autorelease(n);
}
+ (NSNumber*)numberWithInt:(int)v { return make_number(v); }
+ (NSNumber*)numberWithUnsignedInt:(unsigned)v { return make_number(v); }
+ (NSNumber*)numberWithBool:(BOOL)v { return make_number(v); }
+ (NSNumber*)numberWithDouble:(double)v { return make_number(v); }
+ (NSNumber*)numberWithLong:(long)v { return make_number(v); }
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)v { return make_number(v); }
- (double)doubleValue { return d; }
- (int)intValue { return (int)d; }
- (NSString*)stringValue {
  char b[40];
  snprintf(b, sizeof b, "%.17g", d);
  return make_string(b);
}
- (NSString*)description { return self.stringValue; }
- (id)copy { return objc_retain(self); }
@end

@interface NSArray () {
 @public
  std::vector<id>* v;
}
@end

@implementation NSArray
+ (instancetype)arrayWithObjects:(const id[])o count:(NSUInteger)n {
  NSArray* a = [self alloc];
  a->v = new std::vector<id>();
  for (NSUInteger i = 0; i < n; i++) a->v->push_back(objc_retain(o[i]));
  return objc_autorelease(a);
}
- (void)dealloc {
  for (id o : *v) objc_release(o);
  delete v;
  [super dealloc];
}
- (NSUInteger)count { return v->size(); }
- (id)objectAtIndex:(NSUInteger)i {
  if (i >= v->size()) emu_objc_die("NSArray index %lu of %zu", i, v->size());
  return (*v)[i];
}
- (id)objectAtIndexedSubscript:(NSUInteger)i { return [self objectAtIndex:i]; }
- (id)firstObject { return v->size() ? (*v)[0] : nil; }
@end

@interface NSDictionary () {
 @public
  NSArray *k, *o;
}
@end

@implementation NSDictionary
+ (instancetype)dictionaryWithObjects:(const id[])o forKeys:(const id[])k count:(NSUInteger)n {
  NSDictionary* d = [self alloc];
  d->k = objc_retain([NSArray arrayWithObjects:k count:n]);
  d->o = objc_retain([NSArray arrayWithObjects:o count:n]);
  return objc_autorelease(d);
}
- (void)dealloc {
  objc_release(k);
  objc_release(o);
  [super dealloc];
}
- (NSUInteger)count { return k.count; }
- (NSArray*)allKeys { return k; }
- (id)copy { return objc_retain(self); }
- (id)objectForKeyedSubscript:(id)q {
  for (NSUInteger i = 0; i < k.count; i++)
    if ([(NSString*)k[i] isEqualToString:q]) return o[i];
  return nil;
}
@end

@interface NSError () {
 @public
  NSString *msg, *dom;
  NSInteger c;
}
@end

@implementation NSError
- (NSInteger)code { return c; }
- (NSString*)domain { return dom; }
- (NSString*)localizedDescription { return msg; }
- (NSString*)description { return msg; }
- (void)dealloc {
  objc_release(msg);
  objc_release(dom);
  [super dealloc];
}
@end

extern "C" NSError* emu_error(const char* dom, NSInteger code, const char* msg) {
  NSError* e = [NSError alloc];
  e->msg = objc_retain(make_string(msg));
  e->dom = objc_retain(make_string(dom));
  e->c = code;
  return objc_autorelease(e);
}

@interface NSURL () {
 @public
  NSString* p;
}
@end

@implementation NSURL
+ (NSURL*)fileURLWithPath:(NSString*)p {
  NSURL* u = [self alloc];
  u->p = objc_retain(p);
  return objc_autorelease(u);
}
- (NSString*)path { return p; }
- (void)dealloc {
  objc_release(p);
  [super dealloc];
}
@end

extern "C" void NSLog(NSString* f, ...) {
  va_list a;
  va_start(a, f);
  fprintf(stderr, "%s\n", format(f, a).c_str());
  va_end(a);
}
