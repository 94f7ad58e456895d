// Our own minimal declarations of the public Foundation interface (names and types as documented by Apple).
#pragma once
#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>
#include <limits.h>
typedef bool BOOL;
typedef long NSInteger;
typedef unsigned long NSUInteger;
typedef double NSTimeInterval, CFTimeInterval;
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil nullptr
#define NSUIntegerMax ULONG_MAX
#define NS_ENUM(T, N) \
  enum N : T N;       \
  enum N : T
#define NS_OPTIONS(T, N) \
  T N;                   \
  enum __attribute__((flag_enum)) : T  // as Apple does for C++
#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_UNAVAILABLE __attribute__((unavailable))
#define NS_NOESCAPE __attribute__((noescape))
#define NS_RETURNS_INNER_POINTER __attribute__((objc_returns_inner_pointer))
typedef struct _NSRange {
  NSUInteger location, length;
} NSRange;
static inline NSRange NSMakeRange(NSUInteger l, NSUInteger n) {
  NSRange r = {l, n};
  return r;
}
NS_ASSUME_NONNULL_BEGIN
@class NSString, NSMethodSignature;
@protocol NSObject
- (BOOL)isEqual:(nullable id)o;
- (NSUInteger)hash;
- (Class)class;
- (BOOL)isKindOfClass:(Class)c;
- (BOOL)respondsToSelector:(SEL)s;
@property(readonly, copy) NSString* description;
@end
@protocol NSCopying
- (id)copy;
@end
__attribute__((objc_root_class))
@interface NSObject<NSObject> {
  Class isa;
}
+ (instancetype)alloc;
+ (instancetype)new;
- (instancetype)init;
- (void)dealloc;
+ (Class)class;
@end
@interface NSString : NSObject <NSCopying>
@property(readonly) NSUInteger length;
@property(nullable, readonly) const char* UTF8String NS_RETURNS_INNER_POINTER;
+ (nullable instancetype)stringWithUTF8String:(const char*)s;
- (nullable instancetype)initWithUTF8String:(const char*)s;
+ (instancetype)stringWithFormat:(NSString*)f, ... __attribute__((format(__NSString__, 1, 2)));
- (BOOL)isEqualToString:(NSString*)o;
- (NSUInteger)lengthOfBytesUsingEncoding:(NSUInteger)e;
- (nullable instancetype)initWithBytes:(const void*)b length:(NSUInteger)n encoding:(NSUInteger)e;
@end
enum : NSUInteger { NSUTF8StringEncoding = 4 };
@interface NSNumber : NSObject <NSCopying>
+ (NSNumber*)numberWithInt:(int)v;
+ (NSNumber*)numberWithUnsignedInt:(unsigned)v;
+ (NSNumber*)numberWithBool:(BOOL)v;
+ (NSNumber*)numberWithDouble:(double)v;
+ (NSNumber*)numberWithLong:(long)v;
+ (NSNumber*)numberWithUnsignedLong:(unsigned long)v;
@property(readonly) double doubleValue;
@property(readonly) int intValue;
@property(readonly, copy) NSString* stringValue;
@end
@interface NSArray<__covariant T> : NSObject
@property(readonly) NSUInteger count;
- (T)objectAtIndex:(NSUInteger)i;
- (T)objectAtIndexedSubscript:(NSUInteger)i;
+ (instancetype)arrayWithObjects:(const T _Nonnull[_Nullable])o count:(NSUInteger)n;
@property(nullable, readonly) T firstObject;
@end
@interface NSDictionary<__covariant K, __covariant V> : NSObject
@property(readonly) NSUInteger count;
- (nullable V)objectForKeyedSubscript:(K)k;
+ (instancetype)dictionaryWithObjects:(const V _Nonnull[_Nullable])o forKeys:(const K _Nonnull[_Nullable])k count:(NSUInteger)n;
@property(readonly, copy) NSArray<K>* allKeys;
@end
typedef NSString* NSErrorDomain;
@interface NSError : NSObject
@property(readonly) NSInteger code;
@property(readonly, copy) NSErrorDomain domain;
@property(readonly, copy) NSString* localizedDescription;
@end
@interface NSURL : NSObject
+ (NSURL*)fileURLWithPath:(NSString*)p;
@property(nullable, readonly, copy) NSString* path;
@end
#ifdef __cplusplus
extern "C"
#endif
    void
    NSLog(NSString* f, ...) __attribute__((format(__NSString__, 1, 2)));
NS_ASSUME_NONNULL_END
